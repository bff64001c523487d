"""Nodes whose own parts of the model no local training has changed yet. They are scored or not.

With ``federation.participation`` below 1 a node may not be drawn for many rounds, and a node may come late. Where parts
of the model stay on the nodes, such a node scores random numbers of before round 1, which says nothing of the method.
"""

import logging
from collections.abc import Collection, Sequence

from fedshift_core.limits import some
from fedshift_core.plural import plural
from fedshift_strategies.federation.context import RunContext
from fedshift_strategies.federation.roster import Node

log = logging.getLogger("fedshift")
MOST_NAMED = 5


def at_score(
    run: RunContext, nodes: Sequence[Node], trained: Collection[int], server_round: int
) -> tuple[list[int], list[int]]:
    """Return which nodes have not trained yet, and which of them score nothing; say it where there are some.

    Args:
        run: The run.
        nodes: Those that are connected.
        trained: Indices of the nodes that keep parts of their own that they have trained.
        server_round: The round that is scored.

    Returns:
        Two lists of indices: the second is empty with ``evaluate.untrained=count``, else the first.
    """
    missing = [node for node in nodes if node.index not in trained] if run.model.own_parts else []
    if not missing:
        return [], []
    counts = run.config.evaluate.untrained == "count"
    indices = [node.index for node in missing]
    fields = {"event": "untrained", "round": server_round, "nodes": indices}
    log.warning("round %d: %s", server_round, line(missing, counts=counts), extra=fields)
    return indices, [] if counts else indices


def line(nodes: Sequence[Node], *, counts: bool) -> str:
    """Return in words that nodes have not trained yet and what is done with them.

    Args:
        nodes: The nodes, at least one.
        counts: They are scored all the same.
    """
    named = some([f"{node.index} ({node.domain})" for node in nodes], MOST_NAMED)
    who = plural(len(nodes), "node has", "nodes have")
    what = (
        "scored all the same (evaluate.untrained=count)"
        if counts
        else "left out of the scores (evaluate.untrained=count scores them)"
    )
    return f"{who} not trained yet, {what}: node {named}"
