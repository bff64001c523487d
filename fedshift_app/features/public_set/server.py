"""Which copy of the public set a run has. It is that of most nodes, not that of the first that answered."""

from collections import Counter
from collections.abc import Iterable

from fedshift_core.plural import plural
from fedshift_strategies.features.base import ServerFeature
from fedshift_strategies.federation.nodes import Node

Copy = tuple[str, int]  # SHA-256, and number of images


def copy_of(node: Node) -> Copy:
    """Return a node's copy of the public set."""
    return node.public, node.num_public


def of_most(nodes: Iterable[Node]) -> Copy | None:
    """Return the copy that more nodes have than any other. None where two have as many, or there is no node."""
    counted = Counter(copy_of(node) for node in nodes).most_common(2)
    if not counted or (len(counted) == 2 and counted[0][1] == counted[1][1]):
        return None
    return counted[0][0]


def another(node: Node, copy: Copy) -> str:
    """Return what is wrong with a node that has not the run's copy."""
    return (
        f"a node of {node.domain!r} has another public set than most nodes: {_told(copy_of(node))}, expected "
        f"{_told(copy)}; give all nodes the same copy (docs/deploy/deployment.md)"
    )


def no_majority(nodes: Iterable[Node]) -> str:
    """Return which copies there are, of which none is that of most nodes."""
    counted = sorted(Counter(copy_of(node) for node in nodes).items(), key=lambda item: (-item[1], item[0]))
    shown = "; ".join(f"{number} with {_told(copy)}" for copy, number in counted[:3])
    more = f"; and {plural(len(counted) - 3, 'other copy', 'other copies')}" if len(counted) > 3 else ""
    return (
        f"no public set is that of most nodes: {shown}{more}; give all nodes the same copy (docs/deploy/deployment.md)"
    )


def _told(copy: Copy) -> str:
    return f"{plural(copy[1], 'image')}, sha256 {copy[0][:12] or 'none'}"


class PublicSet(ServerFeature):
    """Holds nodes to the copy that most of them have (``fedshift_strategies.federation.roster.Agreement``)."""

    def copy_of(self, node: Node) -> Copy:
        """Return a node's copy."""
        return copy_of(node)

    def of_most(self, nodes: Iterable[Node]) -> Copy | None:
        """Return the copy that more nodes have than any other."""
        return of_most(nodes)

    def another(self, node: Node, copy: Copy) -> str:
        """Return what is wrong with a node that has another copy."""
        return another(node, copy)

    def no_majority(self, nodes: Iterable[Node]) -> str:
        """Return which copies there are, of which none is that of most nodes."""
        return no_majority(nodes)
