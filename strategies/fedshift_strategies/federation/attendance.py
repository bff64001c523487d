"""Nodes that gave their part to a round, and why others did not."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fedshift_core.losses import NOBODY
from fedshift_core.wire.names import WITHHELD
from fedshift_strategies.federation import checks
from fedshift_strategies.federation.context import RoundResult
from fedshift_strategies.federation.memory import NodeMemory
from fedshift_strategies.federation.nodes import Node
from fedshift_strategies.federation.roster import Roster

log = logging.getLogger("fedshift")


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
        fields = {
            "event": checks.event_of(reason, "left_out"),
            "round": number,
            "node": node.index,
            "domain": node.domain,
        }
        log.warning("round %d: %s left out: %s", number, node, reason, extra=fields)
        self._roster.listener.left_out(number, node, reason)
        self.result.left_out.append(f"{node}: {reason}")

    def observe(self, node: Node, metrics: Mapping[str, Any], memory: NodeMemory) -> None:
        """Note what a node says of its memory, and that it lets out less than was asked."""
        if problem := memory.record(node, self.result.server_round, metrics):
            self.result.started_anew.append(problem)
        if WITHHELD in metrics and node.index not in self._withholding:
            self._withholding.add(node.index)
            fields = {"event": "withheld", "node": node.index, "domain": node.domain}
            log.info("%s lets out less than the run asks for: its owner's policy", node, extra=fields)
