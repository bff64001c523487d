"""Which copy of the public set a run has. It is that of most nodes, not that of the first that answered."""

from collections import Counter
from collections.abc import Iterable

from fedshift_core.limits import some
from fedshift_strategies.features.base import Node, ServerFeature

Copy = tuple[str, int]  # SHA-256, and number of images
SAME = "give all nodes the same copy (docs/deploy/deployment.md)"


class PublicSet(ServerFeature):
    """Holds nodes to the copy that most of them have (``fedshift_strategies.federation.roster.Agreement``)."""

    def copy_of(self, node: Node) -> Copy:
        """Return a node's copy."""
        return node.public, node.num_public

    def of_most(self, nodes: Iterable[Node]) -> Copy | None:
        """Return the copy that more nodes have than any other; None where two have as many, or there is no node."""
        counted = self._counted(nodes)
        if not counted or (len(counted) > 1 and counted[0][1] == counted[1][1]):
            return None
        return counted[0][0]

    def another(self, node: Node, copy: Copy) -> str:
        """Return what is wrong with a node that has another copy."""
        return (
            f"a node of {node.domain!r} has another public set than most nodes: {_text(self.copy_of(node))}, expected "
            f"{_text(copy)}; {SAME}"
        )

    def no_majority(self, nodes: Iterable[Node]) -> str:
        """Return which copies there are, of which none is that of most nodes."""
        shown = some([f"{number} with {_text(copy)}" for copy, number in self._counted(nodes)], 3, "; ")
        return f"no public set is that of most nodes: {shown}; {SAME}"

    def _counted(self, nodes: Iterable[Node]) -> list[tuple[Copy, int]]:
        """Return copies with how many nodes have them, the most frequent first."""
        return sorted(Counter(map(self.copy_of, nodes)).items(), key=lambda item: (-item[1], item[0]))


def _text(copy: Copy) -> str:
    return f"{copy[1]} images, sha256 {copy[0][:12] or 'none'}"
