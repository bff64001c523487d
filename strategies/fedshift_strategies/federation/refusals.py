"""Why nodes are refused, in words, and how the log names that."""

import logging
from collections.abc import Iterable, Mapping, Sequence

from fedshift_core.plural import plural
from fedshift_strategies.federation import checks
from fedshift_strategies.federation.nodes import Node

log = logging.getLogger("fedshift")

MOST_REASONS = 20  # why nodes were refused that an error can tell; it shows two


def doubled(index: int, former: Node, node: Node) -> str:
    """Return that two nodes have the same number, or without numbers hold the same images."""
    if node.partition_id < 0:
        return (
            f"a node announces the same images as {former}, which is connected: it waits until that one is gone, as "
            "it may be the same after a restart; give each node a partition-id"
        )
    return f"two nodes have partition-id {index}: one holds {former.domain!r}, the other {node.domain!r}, which waits"


def twins(nodes: Iterable[Node]) -> list[str]:
    """Return, for each node whose number another one has that goes before it, what is wrong.

    Args:
        nodes: In order, so that those with one number follow each other.
    """
    first: Node | None = None
    problems = []
    for node in nodes:
        if first is not None and node.partition_id == first.partition_id >= 0:
            problems.append(doubled(node.partition_id, first, node))
        else:
            first = node
    return problems


def too_few(here: int, wanted: int, timeout: float, reasons: Mapping[str, int]) -> str:
    """Return that too few nodes can take part, and why others cannot, each reason with their number."""
    within = f"within {timeout:.0f} s (federation.node_timeout)"
    if not reasons:
        return f"{here} of {plural(wanted, 'node')} answered {within}; start the others, or lower federation.min_nodes"
    refused, why = sum(reasons.values()), first_two(sorted(reasons))
    return (
        f"{here} of {plural(wanted, 'node')} that can take part answered {within}, {refused} "
        f"{'was' if refused == 1 else 'were'} refused:\n{why}"
    )


def warn(problems: dict[str, int]) -> None:
    """Say that nodes cannot take part, each reason once with their number."""
    for problem, number in problems.items():
        who = "a node" if number == 1 else f"{number} nodes"
        log.warning(
            "%s cannot take part, the others go on: %s",
            who,
            problem,
            extra={"event": checks.event_of(problem)},
        )


def count(reasons: dict[str, int], reason: str) -> None:
    """Count a reason; what comes after the first ``MOST_REASONS`` different ones has one place."""
    key = reason if reason in reasons or len(reasons) < MOST_REASONS else "other reasons"
    reasons[key] = reasons.get(key, 0) + 1


def first_two(problems: Sequence[str]) -> str:
    """Return the first two problems, and how many more there are, in lines."""
    more = [f"(and {len(problems) - 2} more)"] if len(problems) > 2 else []
    return "\n".join([*problems[:2], *more])
