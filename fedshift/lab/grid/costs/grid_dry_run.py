"""``fedshift sweep --dry-run`` and ``fedshift tune --dry-run``: each setting is measured once, nothing is written."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedshift.lab.grid.costs import dry_run
from fedshift.lab.grid.costs.dry_run import Measured
from fedshift.lab.grid.sweep import grid, running, sweeping
from fedshift.lab.grid.sweep.grid import Point
from fedshift.lab.grid.sweep.progress import makespan
from fedshift.lab.grid.sweep.records import Images, read_run
from fedshift.lab.grid.tune import requested as tune_requested
from fedshift.run.columns import columns, facts
from fedshift.run.launch import worker_count
from fedshift_app.config.sections import RunConfig
from fedshift_app.run import console
from fedshift_app.run.disk_space import size
from fedshift_app.run.files import CONFIG_FILE, RESULTS_FILE
from fedshift_clients.training import machine
from fedshift_core.limits import MOST_NAME, plain, shortened
from fedshift_core.plural import plural

#: Sections whose numbers with a point, such as rates, change no costs unless they are 0.
FREE_NUMBERS = {"method", "modules", "adapt", "aggregation", "server", "train", "privacy"}
#: Keys that change no costs at all.
FREE_KEYS = {"seed", "experiment", "tuned", "tracking", "profile"}
NUMBER = re.compile(r"(?<=[:\[,])-?\d+(\.\d+(e[+-]?\d+)?|e[+-]?\d+)")
HEAD = ("runs", "number", "each", "all", "folders", "traffic")
DAY = 86_400.0
SHORTER = (
    "shorter: evaluate-every=10, model.precompute=on, train.precision=auto, more jobs, fewer seeds, rounds or trials, "
    "a GPU; `fedshift sweep --list --slurm FILE` spreads runs over machines"
)


@dataclass
class Work:
    """Runs that cost the same."""

    label: str
    of: Measured
    seconds: float
    number: int = 0
    folders: int = 0


@dataclass
class Measurements:
    """The runs of a grid, of which each distinct setting is measured once."""

    jobs: int
    known: dict[str, Measured] = field(default_factory=dict)
    works: dict[tuple[str, str], Work] = field(default_factory=dict)

    def add(self, point: Point, runs: int, label: str = "", number: int = 1, *, keeps: bool = True) -> float:
        """Add runs that are alike, of ``runs`` in all; return the seconds of one.

        A run that has ended keeps its weights, a trial does not.

        Raises:
            FedShiftError: If it could not start, or its node cannot train.
        """
        key = f"{deciding(point.config)} {point.nodes}"
        if key not in self.known:
            dry_run.log.info("measuring %s", point.label)
            self.known[key] = dry_run.measure(point.config, point.nodes)
        of = self.known[key]
        workers = max(1, min(self.jobs, worker_count.cores()) // max(1, min(self.jobs, runs)))
        requested = worker_count.requested(point.launch) or workers
        seconds = of.seconds(dry_run.places(point.config, point.nodes, point.launch, requested))
        work = self.works.setdefault((key, label), Work(point.label, of, seconds))
        same = [word for word in work.label.split() if word in point.label.split()]
        work.label = " ".join(same) or point.config.method["name"]
        left = of.disk.folder if keeps else of.disk.texts
        work.folders += number * left if work.number else of.disk.folder + (number - 1) * left
        work.number += number
        return seconds

    def text(self, heads: Sequence[str], total: float) -> str:
        """Return table, totals and advice for runs that take so many seconds side by side."""
        works = [(f"{work.label}{suffix}", work) for (_, suffix), work in self.works.items()]
        rows = [HEAD, *(
            (shortened(plain(name, 4 * MOST_NAME), 40), str(work.number), console.duration(work.seconds),
             console.duration(work.number * work.seconds), size(work.folders), size(work.number * work.of.traffic))
            for name, work in works
        )]  # fmt: skip
        alone = sum(work.number * work.seconds for _, work in works)
        lines = [
            ("time", f"about {console.duration(total)} on this machine, {self.jobs} at a time, "
                     f"{console.duration(alone)} one after another, without the start of processes"),
            ("disk", f"{size(sum(work.folders for _, work in works))} for all run folders; {self._images()} of decoded "
                     "images, once for all runs"),
            ("traffic", f"{size(sum(work.number * work.of.traffic for _, work in works))} between nodes and server, "
                        "both ways, in all runs"),
            ("measured", f"{plural(len(self.known), 'setting')}, two rounds and the scores of one node each"),
            ("machine", machine.describe()),
            ("warning", f"more than a day; {SHORTER}" if total > DAY else ""),
        ]  # fmt: skip
        return "\n".join([*heads, "", *columns(rows, "", numbers=True, ruled=True), "", *facts(lines)])

    def _images(self) -> str:
        """Return the bytes of the decoded images of all data sets."""
        sizes = {}
        for of in self.known.values():
            tested = {node.domain: node.num_test for node in of.nodes}
            number = sum(node.num_examples + node.num_validation for node in of.nodes) + sum(tested.values())
            sizes[of.config.dataset.name, of.config.dataset.pixels] = 3 * of.config.dataset.pixels**2 * number
        return size(sum(sizes.values()))


def sweep(arguments: Sequence[str]) -> str:
    """Return what a sweep would take.

    Args:
        arguments: Those of ``fedshift sweep``.

    Raises:
        FedShiftError: If the grid is wrong, a run could not start, or a node cannot train.
    """
    request, points, notes, folder = sweeping.planned(arguments)
    finished = _finished(folder, points)
    left = [point for point in points if point.key not in finished]
    head = plural(len(points), "run") + f", {len(finished)} of them finished in {folder}" * bool(finished)
    if not left:
        return f"{head}: nothing is left to do"
    console.set_up(aside=True)
    measured = Measurements(request.options.jobs or running.usual_jobs(points))
    seconds = [measured.add(point, len(left)) for point in left]
    return measured.text([head, *notes], makespan(seconds, measured.jobs))


def tune(arguments: Sequence[str]) -> str:
    """Return what a search would take at most: no trial ends early, and a tuned row for each method.

    Args:
        arguments: Those of ``fedshift tune``.

    Raises:
        FedShiftError: As :func:`sweep`.
    """
    request = tune_requested.read(arguments)
    grid.check(plan.base for plan in request.plans)
    console.set_up(aside=True)
    measured = Measurements(
        request.grid_request.options.jobs or running.usual_jobs([plan.base for plan in request.plans])
    )
    trials = {plan.method: request.options.budget if plan.space else 1 for plan in request.plans}
    searches = [
        trials[plan.method]  # which follow one another
        * measured.add(plan.trial({}), len(trials), ": trials", trials[plan.method], keeps=False)
        for plan in request.plans
    ]
    searched = {plan.method for plan in request.plans if plan.space}
    compared: list[float] = []
    finals = request.finals({})
    for point in finals:
        number = 1 + (point.config.method["name"] in searched)  # one that is tuned is as dear as the method as it is
        compared += [measured.add(point, len(finals), ": to compare", number)] * number
    head = (
        f"{plural(len(request.plans), 'method')}: at most {plural(sum(trials.values()), 'trial')}, then "
        f"{plural(len(compared), 'run')} to compare"
    )
    return measured.text([head, *request.notes], makespan(searches, measured.jobs) + makespan(compared, measured.jobs))


def deciding(config: RunConfig) -> str:
    """Return the settings of a run that may change what it takes; of rates and weights only whether they are 0."""
    rated = config.model_dump(mode="json", include=FREE_NUMBERS)
    rest = config.model_dump_json(exclude=FREE_NUMBERS | FREE_KEYS)
    text = json.dumps(rated, separators=(",", ":"))
    return rest + NUMBER.sub(lambda number: "any" if float(number[0]) else number[0], text)


def _finished(folder: Path, points: Sequence[Point]) -> set[str]:
    """Return the keys of the finished runs in a sweep's folder that are on today's images."""
    images, configs = Images(), {point.key: point.config for point in points}
    known = [read_run(file) for file in folder.glob(f"*/{CONFIG_FILE}") if (file.parent / RESULTS_FILE).is_file()]
    return {
        run[0] for run in known if run is not None and run[0] in configs and not images.changed(configs[run[0]], run[1])
    }
