"""Where the time of a round goes, if the run asks for it (``profile=true``)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedshift_core.run_settings import RunSettings
from fedshift_core.wire.names import PROCESS, SECONDS, WORK
from fedshift_strategies.features.base import Scoring, ServerFeature, Steps, Training
from fedshift_strategies.federation.context import EVALUATION, TRAINING, RoundResult
from fedshift_strategies.federation.nodes import Node

WRITING = "checkpoint"  # the run folder: metrics, weights, knowledge


class Profile(ServerFeature):
    """Measures each round on the server, and adds up what the nodes say of theirs."""

    key = "profile"
    before = "started_anew"

    def on_round(self, training: Training) -> Steps:
        """Begin a round, and write what there is of it, as it may not be scored."""
        self._nodes: dict[str, float] = {}
        self._places: set[float] = set()
        training.observers.append(self._observe)
        yield None
        training.result.shown[self.key] = self._report(training.result)

    def on_scores(self, scoring: Scoring) -> Steps:
        """Write the round's report."""
        if not hasattr(self, "_nodes"):  # a run without rounds
            self._nodes, self._places = {}, set()
        scoring.observers.append(self._observe)
        yield None
        scoring.result.shown[self.key] = self._report(scoring.result)

    def _observe(self, node: Node, metrics: Mapping[str, Any]) -> None:
        """Add what a node says of its time, as ``checks`` lets it pass."""
        seconds = {name: value for name, value in metrics.items() if name.startswith(SECONDS)}
        for name, value in seconds.items():
            part = name.removeprefix(SECONDS)
            self._nodes[part] = self._nodes.get(part, 0.0) + float(value)
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

    @classmethod
    def ending(cls, config: RunSettings, history: Sequence[RoundResult], writing: float) -> tuple[dict[str, Any], str]:
        """Return where the time of the whole run went, and its table."""
        if not config.profile:
            return {}, ""
        total = summary((result.shown.get(cls.key, {}) for result in history), writing)
        return total, table(total)


def summary(rounds: Iterable[Mapping[str, Any]], writing: float) -> dict[str, Any]:
    """Add up the reports of all rounds.

    Args:
        rounds: The report of each round.
        writing: Seconds spent on the run folder.

    Returns:
        Seconds of the whole run by part, on the server and on all nodes together; ``waiting`` belongs to the nodes.
    """
    server: dict[str, float] = {}
    nodes: dict[str, float] = {}
    number, workers = 0, 0
    for report in filter(None, rounds):  # rounds before a resume may not have been measured
        number += 1
        workers = max(workers, report["side_by_side"])
        # The nodes of a resumed run of an earlier version may have sent other names.
        known = {part: seconds for part, seconds in report["nodes"].items() if part in WORK}
        for total, parts in ((server, report["server"]), (nodes, known | {"waiting": report["waiting"]})):
            for part, seconds in parts.items():
                total[part] = total.get(part, 0.0) + seconds
    return {"rounds": number, "side_by_side": workers, "server": server | {WRITING: writing}, "nodes": nodes}


def table(profile: Mapping[str, Any]) -> str:
    """Return the summary as text: seconds a round and the share of the total, on the server and on the nodes."""
    rounds = max(profile["rounds"], 1)
    heads = {"server": "the server", "nodes": f"the nodes, {profile['side_by_side']} side by side"}
    lines = [""]
    for side, head in heads.items():
        seconds_by_part = profile[side]
        total = sum(seconds_by_part.values()) or 1.0
        lines.append(f"where the time of {head} went    seconds a round   share")
        lines += [
            f"  {part:42} {seconds / rounds:12.2f} {100 * seconds / total:6.1f} %"
            for part, seconds in sorted(seconds_by_part.items(), key=lambda item: -item[1])
        ]
    return "\n".join([*lines, ""])
