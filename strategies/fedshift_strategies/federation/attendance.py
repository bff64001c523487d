"""Nodes that gave their part to a round, and why others did not."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedshift_core.limits import some
from fedshift_core.losses import NOBODY
from fedshift_core.plural import plural
from fedshift_core.wire.names import WITHHELD
from fedshift_strategies.federation import checks
from fedshift_strategies.federation.context import RoundResult, RunContext
from fedshift_strategies.federation.memory import NodeMemory
from fedshift_strategies.federation.nodes import Node
from fedshift_strategies.federation.roster import Roster

log = logging.getLogger("fedshift")
MOST_NAMED = 5  # nodes in a line


class Attendance:
    """Writes into a round's result who gave no part.

    Attributes:
        result: Of the round that is going on.
    """

    def __init__(self, roster: Roster, result: RoundResult) -> None:
        self._roster, self.result = roster, result
        self._withholding: set[int] = set()  # indices of nodes that let out less than was asked, as a line has said

    def note_absent(self, present: Sequence[Node]) -> None:
        """Note which nodes of the run are not asked in this phase, and why, unless the round says so already."""
        result, roster = self.result, self._roster
        for line in roster.declined():
            if line not in result.left_out:
                result.left_out.append(line)
                result.lose(NOBODY)
        if len(present) == len(roster.nodes):  # of a simulation all, which may be a hundred thousand
            return
        present_ids = {node.node_id for node in present}
        absent = [node for node in roster.nodes if node.node_id not in present_ids]
        for node in absent:
            if node.index not in result.lost:
                result.left_out.append(f"{node}: not asked: {roster.why_absent(node)}")
        result.lose(*(node.index for node in absent))

    def leave_out(self, node: Node, reason: str) -> None:
        """Note that a node gave no part."""
        number = self.result.server_round
        self.result.lose(node.index)
        fields = node.fields(checks.event_of(reason, "left_out"), round=number)
        log.warning("round %d: %s left out: %s", number, node, reason, extra=fields)
        self._roster.listener.left_out(number, node, reason)
        self.result.left_out.append(f"{node}: {reason}")

    def observe(self, node: Node, metrics: Mapping[str, Any], memory: NodeMemory) -> None:
        """Note what a node says of its memory, and that it lets out less than was asked."""
        if problem := memory.record(node, self.result.server_round, metrics):
            self.result.started_anew.append(problem)
        if WITHHELD in metrics and node.index not in self._withholding:
            self._withholding.add(node.index)
            fields = node.fields("withheld")
            log.info("%s lets out less than the run asks for: its owner's policy", node, extra=fields)


def untrained(
    run: RunContext, nodes: Sequence[Node], trained: Collection[int], server_round: int
) -> tuple[list[int], list[int]]:
    """Return which nodes have not trained yet, and which of them score nothing; say it where there are some.

    With ``federation.participation`` below 1 a node may not be drawn for many rounds, and a node may come late. Where
    parts of the model stay on the nodes, such a node scores random numbers of before round 1, which says nothing of the
    method.

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
    log.warning(
        "round %d: %s not trained yet, %s: node %s",
        server_round,
        plural(len(missing), "node has", "nodes have"),
        "scored all the same (evaluate.untrained=count)"
        if counts
        else "left out of the scores (evaluate.untrained=count scores them)",
        some([f"{node.index} ({node.domain})" for node in missing], MOST_NAMED),
        extra={"event": "untrained", "round": server_round, "nodes": indices},
    )
    return indices, [] if counts else indices
