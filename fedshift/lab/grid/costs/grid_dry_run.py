"""The text of ``fedshift sweep --dry-run`` and ``fedshift tune --dry-run``: nothing is trained, scored or written."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedshift.lab.grid.costs.grid_estimate import Measurements, Work
from fedshift.lab.grid.sweep import grid, running, sweeping
from fedshift.lab.grid.sweep.grid import CheckData, CheckModel, Point
from fedshift.lab.grid.sweep.progress import makespan
from fedshift.lab.grid.sweep.records import Images, read_run
from fedshift.lab.grid.tune import requested as tune_requested
from fedshift.run.columns import columns, facts
from fedshift.run.launch import worker_count
from fedshift_app.run import disk_space
from fedshift_app.run.console import duration
from fedshift_app.run.files import CONFIG_FILE, RESULTS_FILE
from fedshift_clients.training import machine
from fedshift_core.limits import MOST_NAME, plain, shortened
from fedshift_core.plural import plural

DAY = 86_400.0
RATES = (1.0, 5.0, 20.0)  # TFLOP/s that a GPU sustains
PETA, TERA, GIGA = 1e15, 1e12, 1e9
LEAST_SHARE = 0.05  # of the time, from which fewer scorings are advised
HEAD = ("runs", "number", "each", "all", "PFLOPs", "folders", "traffic")
NOTES = (
    "An estimate, without other work on the machine, slow disks, retries, and messages of real nodes. Methods with "
    "prototypes send them down from round 2 on. FLOPs are those of convolutions and matrix products, two a "
    "multiply-add; a GPU reaches a rate only with networks and batches that fill it, small ones a few per cent of it."
)


def sweep(arguments: Sequence[str], check_data: CheckData, check_model: CheckModel = grid.unchecked) -> str:
    """Return what a sweep would take.

    Args:
        arguments: Those of ``fedshift sweep``.
        check_data: Checks the data of one run.
        check_model: Checks whether the method and the network of one run go together.

    Raises:
        FedShiftError: If the grid is wrong, a run could not start, or a node cannot train.
    """
    request = grid.read(arguments)
    points, notes = grid.points(request, check_data, check_model)
    folder = sweeping.folder_of(request, points)
    finished = _finished(folder, points)
    left = [point for point in points if point.key not in finished]
    jobs = request.options.jobs or running.usual_jobs(points)
    head = plural(len(points), "run") + f", {len(points) - len(left)} of them finished in {folder}" * bool(finished)
    if not left:
        return f"{head}: nothing is left to do"
    measured = Measurements()
    seconds = [measured.add(point, jobs, len(left)) for point in left]
    also = "--list --slurm FILE spreads the runs over machines"
    return _text([head, *notes], makespan(seconds, jobs), min(jobs, len(left)), measured, also)


def tune(arguments: Sequence[str], check_data: CheckData, check_model: CheckModel = grid.unchecked) -> str:
    """Return what a search would take at most: no trial ends early, and a tuned row for each method.

    Args:
        arguments: Those of ``fedshift tune``.
        check_data: Checks the data of one run.
        check_model: Checks whether the method and the network of one run go together.

    Raises:
        FedShiftError: As :func:`sweep`.
    """
    request = tune_requested.read(arguments, check_data)
    for plan in request.plans:
        check_model(plan.base.config)
    bases = [plan.base for plan in request.plans]
    jobs = request.grid_request.options.jobs or running.usual_jobs(bases)
    measured, searches, compared, trials = Measurements(), [], [], 0
    for plan in request.plans:
        number = request.options.budget if plan.space else 1
        each = measured.add(plan.trial({}), jobs, len(request.plans), ": trials", number, keeps=False)
        searches.append(number * each)  # the trials of a method follow one another
        trials += number
    finals = request.finals({})
    searched = {plan.method for plan in request.plans if plan.space}
    for point in finals:
        number = 1 + (point.config.method["name"] in searched)  # one that is tuned is as dear as the method as it is
        compared += [measured.add(point, jobs, len(finals), ": to compare", number)] * number
    head = (
        f"{plural(len(request.plans), 'method')}: at most {plural(trials, 'trial')}, then "
        f"{plural(len(compared), 'run')} to compare"
    )
    pruning = ["trials that end early take less"] if request.options.pruning else []
    total = makespan(searches, jobs) + makespan(compared, jobs)
    return _text([head, *request.notes, *pruning], total, jobs, measured, "a smaller budget")


def _finished(folder: Path, points: Sequence[Point]) -> set[str]:
    """Return the keys of the finished runs in a sweep's folder that are on today's images."""
    images, configs = Images(), {point.key: point.config for point in points}
    known = (read_run(file) for file in folder.glob(f"*/{CONFIG_FILE}") if (file.parent / RESULTS_FILE).is_file())
    return {
        key
        for key, stored in (run for run in known if run is not None)
        if key in configs and not images.changed(configs[key], stored)
    }


def _text(heads: Sequence[str], total: float, jobs: int, measured: Measurements, also: str) -> str:
    """Return table, totals, notes and advice."""
    works = [replace(work, label=f"{work.label}{suffix}") for (_, suffix), work in measured.works.items()]
    flops = sum(work.number * work.estimate.flops for work in works)
    alone = sum(work.number * work.seconds for work in works)
    folders = sum(work.folders for work in works)
    traffic = sum(work.traffic for work in works)
    side = f"{jobs} side by side" if jobs > 1 else "one after another"
    rows = [HEAD, *map(_row, works)]
    gpu = ", ".join(f"{_hours(flops / rate / TERA)} at {rate:g}" for rate in RATES)
    busy = f"{flops / alone / GIGA:.3g} GFLOP/s a run" if alone else ""
    starts = f"{measured.start:.1f} s of each run is the start of its process"
    largest = disk_space.size(max(work.estimate.disk.folder for work in works))
    lines = [
        ("time", f"about {_hours(total)} on this machine, {side} ({_hours(alone)} one after another); {starts}"),
        ("GPU", f"{flops / PETA:.3g} PFLOPs: about {gpu} TFLOP/s sustained; here {busy}"),
        ("disk", f"{disk_space.size(folders)} for all run folders, {largest} for the largest{_cache(works)}"),
        ("traffic", f"{disk_space.size(traffic)} between nodes and server, both ways, in all runs"),
        ("measured", f"{plural(len(measured.known), 'setting')}, a few steps of one node each"),
        ("machine", machine.describe()),
        ("note", NOTES),
    ]  # fmt: skip
    out = [*heads, "", *columns(rows, "", numbers=True, ruled=True), "", *facts(lines)]
    if total > DAY:
        advice = _advice(works, alone, jobs)
        out += [
            "",
            f"warning: about {_hours(total)}; what would shorten it:",
            *(f"- {line}" for line in (*advice, also)),
        ]
    return "\n".join(out)


def _row(work: Work) -> tuple[str, ...]:
    return (
        shortened(plain(work.label, 4 * MOST_NAME), 40), str(work.number), duration(work.seconds),
        duration(work.number * work.seconds), f"{work.number * work.estimate.flops / PETA:.3g}",
        disk_space.size(work.folders), disk_space.size(work.traffic),
    )  # fmt: skip


def _cache(works: Sequence[Work]) -> str:
    """Return what is kept beside the runs: decoded images, and features where a run precomputes them."""
    images: dict[str, int] = {}
    for work in works:
        config = work.estimate.config
        size = config.dataset.pixels
        held = sum(node.num_examples + node.num_validation for node in work.estimate.nodes)
        tested = {node.domain: node.num_test for node in work.estimate.nodes}
        images[f"{config.dataset.name} {size}"] = 3 * size * size * (held + sum(tested.values()))
    kept = [w.estimate.config.model.precompute_gb for w in works if w.estimate.config.model.precompute]
    features = f", and at most {max(kept):g} GB of kept features" if kept else ""
    return f"; {disk_space.size(sum(images.values()))} or more of decoded images, once for all runs{features}"


def _advice(works: Sequence[Work], alone: float, jobs: int) -> list[str]:
    """Return what would shorten the work, the largest first where that is known."""
    configs = [work.estimate.config for work in works]
    lines = []
    spared = sum(work.spared for work in works)
    if spared > LEAST_SHARE * alone:
        lines.append(f"evaluate-every=10: scoring less often spares about {_hours(spared / jobs)}")
    if any(config.model.freeze != "none" and not config.model.precompute for config in configs):
        lines.append("model.precompute=on: what is frozen is computed once for each image, not in each epoch")
    here = machine.bfloat16()
    if any(config.train.precision == "float32" for config in configs) and here != machine.NONE:
        lines.append(
            f"train.precision=auto: this machine has bfloat16 ({here}); it is measured and taken where it is faster"
        )
    if jobs < worker_count.cores():
        lines.append(f"jobs={worker_count.cores()}: as many runs side by side as there are cores")
    return [*lines, "fewer seeds, rounds or methods; a GPU"]


def _hours(seconds: float) -> str:
    """Return a duration in words: days and hours, hours and minutes, minutes, or seconds."""
    units: tuple[tuple[str, float], ...] = (("d", DAY), ("h", 3600.0), ("min", 60.0))
    for (unit, size), (next_unit, next_size) in zip(units, (*units[1:], ("s", 1.0)), strict=True):
        if seconds >= size:
            whole, rest = divmod(round(seconds / next_size), round(size / next_size))
            return f"{whole} {unit}" + (f" {rest} {next_unit}" if rest and whole < 10 else "")
    return f"{seconds:.2g} s"
