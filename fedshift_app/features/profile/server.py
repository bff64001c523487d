"""Where the time of a round goes, if the run asks for it (``profile=true``)."""

import time
from collections.abc import Mapping
from typing import Any

from fedshift_app.features.profile.show import KEY
from fedshift_core.wire.names import PROCESS, SECONDS
from fedshift_strategies.features.base import ServerFeature
from fedshift_strategies.federation.context import EVALUATION, TRAINING, RoundResult
from fedshift_strategies.federation.nodes import Node


class Clock:
    """Measures one round after another on the server, and adds up what the nodes say of theirs."""

    def __init__(self, *, on: bool, shared_processes: bool) -> None:
        """A clock that does nothing unless it is ``on``.

        Args:
            on: Whether to measure.
            shared_processes: Some processes play all nodes (simulation); else every node has its own.
        """
        self._on, self._shared = on, shared_processes
        self.start()

    def start(self) -> None:
        """Begin a round."""
        self._last = time.perf_counter()
        self._server: dict[str, float] = {}
        self._nodes: dict[str, float] = {}
        self._lanes: set[float] = set()

    def lap(self, part: str) -> None:
        """Add the time since the last lap to a part of the round."""
        now = time.perf_counter()
        self._server[part] = self._server.get(part, 0.0) + now - self._last
        self._last = now

    def add(self, node: int, metrics: Mapping[str, Any]) -> None:
        """Add what the node with this index says of its time, as ``checks`` lets it pass."""
        seconds = {name: value for name, value in metrics.items() if name.startswith(SECONDS)}
        for name, value in seconds.items():
            part = name.removeprefix(SECONDS)
            self._nodes[part] = self._nodes.get(part, 0.0) + float(value)
        if seconds and PROCESS in metrics:
            self._lanes.add(float(metrics[PROCESS]) if self._shared else float(node))

    def report(self) -> dict[str, Any]:
        """Return the round's parts in seconds: of the server, of all nodes together, and how long nodes waited.

        ``side_by_side`` is how many nodes can work at the same time; ``waiting`` is the time in which one of those
        places was empty while the server waited for training or evaluation.
        """
        if not self._on:
            return {}
        places = len(self._lanes)
        busy = sum(self._nodes.values())
        waited = places * (self._server.get(TRAINING, 0.0) + self._server.get(EVALUATION, 0.0)) - busy
        nodes = dict(sorted(self._nodes.items()))
        return {"server": self._server, "nodes": nodes, "side_by_side": places, "waiting": max(0.0, waited)}


class Profile(ServerFeature):
    """Measures each round where ``profile=true``."""

    def start_round(self) -> None:
        """Begin a round."""
        self._clock = Clock(on=self.run.config.profile, shared_processes=self.run.engine.is_simulation)

    def passed(self, phase: str) -> None:
        """Add the time since the last phase to this one."""
        self._clock.lap(phase)

    def observe(self, node: Node, metrics: Mapping[str, Any]) -> None:
        """Add what a node says of its time."""
        if self.run.config.profile:
            self._clock.add(node.index, metrics)

    def finish_round(self, result: RoundResult) -> None:
        """Write the round's report."""
        if report := self._clock.report():
            result.shown[KEY] = report
