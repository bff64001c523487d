"""``fedshift sweep --dry-run`` and ``fedshift tune --dry-run``: each setting is measured once, nothing is written."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal as size

from fedshift.lab.grid.costs import dry_run
from fedshift.lab.grid.costs.dry_run import Measured
from fedshift.lab.grid.sweep import grid, sweeping
from fedshift.lab.grid.sweep.grid import Point
from fedshift.lab.grid.sweep.progress import makespan
from fedshift.lab.grid.sweep.records import Images, read_run
from fedshift.lab.grid.sweep.running import Runner
from fedshift.lab.grid.tune import requested as tune_requested
from fedshift.run.columns import columns, facts
from fedshift.run.launch import worker_count
from fedshift_app.config.sections import RunConfig
from fedshift_app.run import console
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


Job = tuple[Point, str, int]  # runs that follow one another: one of them, what they are for, how many


@dataclass
class Work:
    """Runs that cost the same."""

    label: str
    of: Measured
    seconds: float
    number: int = 0
    folders: int = 0


def sweep(arguments: Sequence[str]) -> str:
    """Return what a sweep would take.

    Args:
        arguments: Those of ``fedshift sweep``.

    Raises:
        FedShiftError: If the grid is wrong, a run could not start, or a node cannot train.
    """
    request, points, notes, folder = sweeping.planned(arguments)
    finished = _finished(folder, points)
    left = [(point, "", 1) for point in points if point.key not in finished]
    head = plural(len(points), "run") + f", {len(finished)} of them finished in {folder}" * bool(finished)
    if not left:
        return f"{head}: nothing is left to do"
    return _text([head, *notes], [left], request.options.jobs or Runner.usual_jobs(points))


def tune(arguments: Sequence[str]) -> str:
    """Return what a search would take at most: no trial ends early, and a tuned row for each method.

    Args:
        arguments: Those of ``fedshift tune``.

    Raises:
        FedShiftError: As :func:`sweep`.
    """
    request = tune_requested.read(arguments)
    grid.check(plan.base for plan in request.plans)
    trials = [(plan.trial({}), ": trials", request.options.budget if plan.space else 1) for plan in request.plans]
    searched = {plan.method for plan in request.plans if plan.space}
    compared = [(point, ": to compare", 1) for point in request.finals({})]
    # One that is tuned is as dear as the method as it is.
    compared += [job for job in compared if job[0].config.method["name"] in searched]
    head = (
        f"{plural(len(request.plans), 'method')}: at most {plural(sum(number for *_, number in trials), 'trial')}, "
        f"then {plural(len(compared), 'run')} to compare"
    )
    jobs = request.options.jobs or Runner.usual_jobs([plan.base for plan in request.plans])
    return _text([head, *request.notes], [trials, compared], jobs)


def _text(heads: Sequence[str], stages: Sequence[Sequence[Job]], jobs: int) -> str:
    """Return a table of the runs of stages that follow one another, totals, and above a day advice."""
    console.set_up(aside=True)
    known: dict[str, Measured] = {}
    works: dict[tuple[str, str], Work] = {}
    total = sum(makespan([_add(job, jobs, len(stage), known, works) for job in stage], jobs) for stage in stages)
    duration = console.duration
    rows = [
        HEAD,
        *(
            (
                shortened(plain(work.label + suffix, 4 * MOST_NAME), 40),
                str(work.number),
                duration(work.seconds),
                duration(work.number * work.seconds),
                size(work.folders),
                size(work.number * work.of.traffic),
            )
            for (_, suffix), work in works.items()
        ),
    ]
    alone = sum(work.number * work.seconds for work in works.values())
    traffic = sum(work.number * work.of.traffic for work in works.values())
    images = {(of.config.dataset.name, of.config.dataset.pixels): _images(of) for of in known.values()}
    lines = [
        (
            "time",
            f"about {duration(total)} on this machine, {jobs} at a time, {duration(alone)} one after another, "
            "without the start of processes",
        ),
        (
            "disk",
            f"{size(sum(work.folders for work in works.values()))} for all run folders; "
            f"{size(sum(images.values()))} of decoded images, once for all runs",
        ),
        ("traffic", f"{size(traffic)} between nodes and server, both ways, in all runs"),
        ("measured", f"{plural(len(known), 'setting')}, two rounds and the scores of one node each"),
        ("machine", machine.describe()),
        ("warning", f"more than a day; {SHORTER}" if total > DAY else ""),
    ]
    return "\n".join([*heads, "", *columns(rows, "", numbers=True, ruled=True), "", *facts(lines)])


def _add(job: Job, jobs: int, together: int, known: dict[str, Measured], works: dict[tuple[str, str], Work]) -> float:
    """Add runs, which are measured unless others of the same setting were; return the seconds of all.

    Raises:
        FedShiftError: If one could not start, or its node cannot train.
    """
    point, suffix, number = job
    key = f"{deciding(point.config)} {point.nodes}"
    if key not in known:
        dry_run.log.info("measuring %s", point.label)
        known[key] = dry_run.measure(point.config, point.nodes)
    of = known[key]
    workers = worker_count.requested(point.launch) or max(1, min(jobs, worker_count.cores()) // min(jobs, together))
    seconds = of.seconds(dry_run.places(point.config, point.nodes, point.launch, workers))
    work = works.setdefault((key, suffix), Work(point.label, of, seconds))
    same = [word for word in work.label.split() if word in point.label.split()]
    work.label = " ".join(same) or point.config.method["name"]
    work.folders += of.disk.folder + (number - 1) * of.disk.texts  # trials that have ended keep no weights
    work.number += number
    return number * seconds


def _images(of: Measured) -> int:
    """Return the bytes of the decoded images of a run."""
    tested = {node.domain: node.num_test for node in of.nodes}
    number = sum(node.num_examples + node.num_validation for node in of.nodes) + sum(tested.values())
    return int(3 * of.config.dataset.pixels**2 * number)


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
