"""What the server knows of the private arrays that nodes keep; never the arrays themselves."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedshift_core.wire.messages import RunHeader
from fedshift_core.wire.names import KEPT, STARTED_ANEW
from fedshift_strategies.federation.roster import Node

log = logging.getLogger("fedshift")


@dataclass
class NodeMemory:
    """Tells each node which memory it must have, and records which it has.

    Attributes:
        run_id: Names the run for the nodes, also after it was resumed; empty where nothing is kept on disk.
        kept_in: Folder for simulated nodes; empty for real ones, which have their own.
        resumed_after: The rounds after which the run was resumed.
        rounds: By index of the node, the last round in which it kept something.
        chosen: Rounds of which nodes keep their memory in addition to those that a run can go back to by itself.
    """

    run_id: str = ""
    kept_in: str = ""
    resumed_after: tuple[int, ...] = ()
    rounds: dict[int, int] = field(default_factory=dict)
    chosen: tuple[int, ...] = ()

    def header(self, node: Node, engine: str, run_json: str, start_digest: str) -> RunHeader:
        """Return what a message says of the run, with which memory and which beginning the node must have."""
        memory_round = self.rounds.get(node.index, 0)
        kept = self.run_id, self.kept_in, self.resumed_after, self.chosen
        return RunHeader(engine, run_json, *kept, memory_round, start_digest)

    def record(self, node: Node, server_round: int, metrics: Mapping[str, Any]) -> str:
        """Take in what a node says of its memory; return what is wrong with it, empty if nothing is."""
        problem = ""
        if STARTED_ANEW in metrics and node.index in self.rounds:
            problem = (
                f"{node}: its private parts of round {self.rounds.pop(node.index)} are gone, it started without them"
            )
            log.warning("round %d: %s", server_round, problem, extra=node.fields("started_anew", round=server_round))
        if KEPT in metrics:
            self.rounds[node.index] = server_round
        return problem
