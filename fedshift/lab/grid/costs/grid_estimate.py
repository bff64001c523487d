"""``fedshift sweep --dry-run`` and ``fedshift tune --dry-run``: what a whole grid of runs will take.

Each distinct setting is measured once, a few steps of one node; runs that differ in nothing that changes costs (the
seed, a rate, a weight of a loss) share the measurement. No round is played.
"""

import heapq
import json
import logging
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedshift.lab.grid.costs import dry_run
from fedshift.lab.grid.costs.estimate import Estimate, estimate
from fedshift.lab.grid.sweep.grid import Point
from fedshift.run.launch import worker_count
from fedshift_app.config.sections import RunConfig
from fedshift_app.run import console

log = logging.getLogger("fedshift")
#: Sections whose numbers with a point, such as rates, change no costs unless they are 0.
FREE_NUMBERS = ("method", "modules", "adapt", "aggregation", "server", "train", "privacy")
#: Keys that change no costs at all.
FREE_KEYS = {"seed", "experiment", "tuned", "tracking", "profile"}
SPARSE = 10  # rounds between two scorings, where fewer scorings are advised


@dataclass(frozen=True)
class RunCost:
    """What one run will take.

    Attributes:
        point: The run.
        estimate: Of the measured run that costs the same.
        seconds: With its start.
    """

    point: Point
    estimate: Estimate
    seconds: float

    @property
    def traffic(self) -> int:
        """Bytes of all messages of the run, both ways, if all rounds are as the first."""
        of = self.estimate
        return (of.down + of.measured.up * of.playing) * of.config.rounds


class Measurements:
    """Measures each distinct setting of a grid once."""

    def __init__(self) -> None:
        console.set_up(aside=True)
        self._known: dict[str, Estimate] = {}
        self.start = start_seconds()

    @property
    def number(self) -> int:
        """How many settings were measured."""
        return len(self._known)

    def cost(self, point: Point, workers: int) -> RunCost:
        """Return what a run takes with so many clients at a time, where the run names no number itself.

        Raises:
            FedShiftError: If it could not start, or its node cannot train; the message names it.
        """
        requested = worker_count.requested(point.launch)
        places = dry_run.places(point.config, point.nodes, point.launch, requested or workers)
        key = json.dumps([deciding(point.config), point.nodes, places], sort_keys=True)
        if key not in self._known:
            log.info("measuring %s", point.label)
            self._known[key] = estimate(point.config, point.nodes, places, count=True)
        of = self._known[key]
        return RunCost(point, of, self.start + of.prepared + of.seconds)


def deciding(config: RunConfig) -> dict[str, Any]:
    """Return the settings of a run that may change what it takes; of rates and weights only whether they are 0."""
    settings = config.model_dump(mode="json", exclude=FREE_KEYS)
    return {section: _without_numbers(of) if section in FREE_NUMBERS else of for section, of in settings.items()}


def _without_numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_numbers(item) for item in value]
    return "any" if isinstance(value, float) and value else value


def start_seconds() -> float:
    """Return the seconds in which a process of a run imports what it needs, by one such process."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-P", "-c", "import fedshift.run.engine.inline, fedshift_app.run.build"],
        check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - began


def share(jobs: int, runs: int) -> int:
    """Return the workers of each of so many runs side by side: more than one where cores would stay idle."""
    return max(1, min(jobs, worker_count.cores()) // max(1, min(jobs, runs)))


def makespan(seconds: Sequence[float], jobs: int) -> float:
    """Return when the last of these is done, if the next one starts as soon as one of ``jobs`` places is free."""
    free = [0.0] * max(1, jobs)
    for each in seconds:
        heapq.heappush(free, heapq.heappop(free) + each)
    return max(free)


def without_scorings(cost: RunCost) -> float:
    """Return the seconds that a run would be spared if it were scored every ``SPARSE`` rounds and the last five."""
    of = cost.estimate
    rounds, every = of.config.rounds, max(SPARSE, of.config.evaluate.every)
    sparse = of.config.evaluate.model_copy(update={"every": every})
    scored = [n for n in of.scored if n == 0 or sparse.scores_global(n, rounds)]
    return of.score_seconds - replace(of, scored=scored).score_seconds
