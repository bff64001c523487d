"""The time of a round by phase, if the run asks for it (``profile=true``)."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fedshift_app.features.profile.show import KEY
from fedshift_core.wire.names import PROCESS, SECONDS
from fedshift_strategies.features.base import (
    Node,
    Params,
    RoundResult,
    RunContext,
    Scoring,
    ServerFeature,
    Steps,
    Training,
)
from fedshift_strategies.federation.context import EVALUATION, TRAINING


class Profile(ServerFeature):
    """Measures each round on the server, and adds up what the nodes say of theirs."""

    def __init__(self, name: str, run: RunContext, params: Params) -> None:
        super().__init__(name, run, params)
        self._nodes = Counter[str]()
        self._places: set[float] = set()

    def on_round(self, training: Training) -> Steps:
        """Begin a round, and write what there is of it, as it may not be scored."""
        self._nodes, self._places = Counter(), set()
        training.observers.append(self._observe)
        yield None
        training.result.shown[KEY] = self._report(training.result)

    def on_scores(self, scoring: Scoring) -> Steps:
        """Write the round's report."""
        scoring.observers.append(self._observe)
        yield None
        scoring.result.shown[KEY] = self._report(scoring.result)

    def _observe(self, node: Node, metrics: Mapping[str, Any]) -> None:
        """Add what a node says of its time, as ``checks`` lets it pass."""
        seconds = {name.removeprefix(SECONDS): float(metrics[name]) for name in metrics if name.startswith(SECONDS)}
        self._nodes.update(seconds)
        if seconds and PROCESS in metrics:  # some processes play all simulated nodes; real ones have their own
            self._places.add(float(metrics[PROCESS] if self.run.engine.is_simulation else node.index))

    def _report(self, result: RoundResult) -> dict[str, Any]:
        """Return the round's parts in seconds: of the server, of all nodes together, and how long nodes waited.

        ``side_by_side`` is how many nodes can work at the same time; ``waiting`` is the time in which one of those
        places was empty while the server waited for training or evaluation.
        """
        server, places = dict(result.laps), len(self._places)
        waited = places * (server.get(TRAINING, 0.0) + server.get(EVALUATION, 0.0)) - sum(self._nodes.values())
        nodes = dict(sorted(self._nodes.items()))
        return {"server": server, "nodes": nodes, "side_by_side": places, "waiting": max(0.0, waited)}
