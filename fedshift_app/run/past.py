"""The state of an interrupted run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift_app.run.checkpoints import Checkpoint
from fedshift_core.atomic_io import Lock
from fedshift_strategies.federation.context import RoundResult


@dataclass(frozen=True)
class Past:
    """The state that an interrupted run left in its folder (``fedshift_app.run.resuming``).

    Attributes:
        path: The folder.
        run_id: Names the run for its nodes.
        engine: The engine it ran on: ``simulation``, ``deployment`` or ``inline``.
        num_nodes: Number of nodes at its start.
        images: The fingerprints of its images by domain and split (``node.data``).
        resumed_after: The rounds after which it was resumed before.
        repeats: How many rounds it may have begun after the checkpoint, which are begun once more.
        repeated: Those, and the ones of earlier times that it was resumed.
        changed: The settings that were changed between rounds, as ``results.json`` has them.
        checkpoint: Its state after the last full round; None if there is none.
        history: Its rounds up to the checkpoint.
        lock: The lock of the process that continues it.
    """

    path: Path
    run_id: str
    engine: str
    num_nodes: int
    images: Mapping[str, Mapping[str, str]]
    resumed_after: tuple[int, ...]
    checkpoint: Checkpoint | None
    history: list[RoundResult]
    lock: Lock | None
    repeats: int = 0
    repeated: int = 0
    changed: tuple[Mapping[str, Any], ...] = ()

    @property
    def completed(self) -> int:
        """The number of rounds that need not be repeated."""
        return self.checkpoint.server_round if self.checkpoint else 0
