"""Estimates of the runs of a grid: each distinct setting is measured once, a few steps of one node.

Runs that differ in nothing that changes costs (the seed, a rate, a weight of a loss) share the measurement.
"""

import json
import logging
import subprocess
import sys
import time
from collections.abc import Mapping
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
class Work:
    """Runs that cost the same.

    Attributes:
        label: What they are.
        number: How many.
        estimate: Of one.
        seconds: Of one, with its start.
        keeps_weights: Whether a run that has ended keeps its weights; a trial of a search does not.
    """

    label: str
    number: int
    estimate: Estimate
    seconds: float
    keeps_weights: bool = True

    @property
    def traffic(self) -> int:
        """Bytes of all messages, both ways, if all rounds are as the first."""
        of = self.estimate
        return self.number * (of.down + of.measured.up * of.playing) * of.config.rounds

    @property
    def folders(self) -> int:
        """Bytes of all run folders."""
        disk = self.estimate.disk
        return disk.folder + (self.number - 1) * (disk.folder if self.keeps_weights else disk.texts)

    @property
    def spared(self) -> float:
        """Seconds spared by scoring every ``SPARSE`` rounds and the last five."""
        of = self.estimate
        rounds, every = of.config.rounds, max(SPARSE, of.config.evaluate.every)
        sparse = of.config.evaluate.model_copy(update={"every": every})
        scored = [n for n in of.scored if n == 0 or sparse.scores_global(n, rounds)]
        return self.number * (of.score_seconds - replace(of, scored=scored).score_seconds)


class Measurements:
    """Measures each distinct setting of a grid once.

    Attributes:
        start: Seconds until a process of a run has imported what it needs.
        works: The runs so far, in groups that cost the same.
    """

    def __init__(self) -> None:
        console.set_up(aside=True)
        self.known: dict[str, Estimate] = {}
        self.start = start_seconds()
        self.works: dict[tuple[str, str], Work] = {}

    def add(self, point: Point, jobs: int, runs: int, label: str = "", number: int = 1, *, keeps: bool = True) -> float:
        """Add as many runs as ``number``, of ``runs`` in all with ``jobs`` at a time; return the seconds of one.

        Raises:
            FedShiftError: If it could not start, or its node cannot train; the message names it.
        """
        workers = max(1, min(jobs, worker_count.cores()) // max(1, min(jobs, runs)))
        requested = worker_count.requested(point.launch) or workers
        places = dry_run.places(point.config, point.nodes, point.launch, requested)
        key = json.dumps([deciding(point.config), point.nodes, places], sort_keys=True)
        if key not in self.known:
            log.info("measuring %s", point.label)
            self.known[key] = estimate(point.config, point.nodes, places, count=True)
        of = self.known[key]
        same = self.works.get((key, label))
        words = point.label.split() if same is None else [w for w in same.label.split() if w in point.label.split()]
        name = " ".join(words) or point.config.method["name"]
        self.works[key, label] = work = Work(
            name, number + (same.number if same else 0), of, self.start + of.prepared + of.seconds, keeps
        )
        return work.seconds


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
