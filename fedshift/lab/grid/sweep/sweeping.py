"""``fedshift sweep``: does the runs of a grid, each in its own process.

The disk holds the state: a run is finished when its folder holds ``results.json``, and is continued when its
folder is there without. So a sweep may be killed at any moment, and goes on when the same command is given again.
"""

import json
import os
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedshift.lab.grid.sweep import children, forks, grid
from fedshift.lab.grid.sweep.children import MARK, POLL_SECONDS, Attempt, Child
from fedshift.lab.grid.sweep.forks import NO_FORKS, Forks
from fedshift.lab.grid.sweep.grid import CheckData, CheckModel, GridRequest, Point
from fedshift.lab.grid.sweep.progress import Bar, time_left
from fedshift.lab.grid.sweep.records import SWEEP_FILE, Images, Record, progress, read_records, read_run
from fedshift.run.launch import forked, processes, worker_count
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.run import console, resuming
from fedshift_app.run.files import CONFIG_FILE, LOCK_FILE, RESULTS_FILE
from fedshift_app.run.versions import versions
from fedshift_core.accuracies import percent
from fedshift_core.atomic_io import InUse, Lock, write_atomically
from fedshift_core.env import COMMAND
from fedshift_core.errors import ConfigError, FederationError, FedShiftError
from fedshift_core.plural import plural
from fedshift_core.wire.names import DEPLOYMENT

if TYPE_CHECKING:
    from fedshift.lab.tables.compare import Comparison


@dataclass(frozen=True)
class Job:
    """A run in progress.

    Attributes:
        record: Which one.
        child: Where it is done.
        resumed: The run folder that it continues.
        workers: How many processes play its nodes.
    """

    record: Record
    child: Attempt
    resumed: Path | None
    workers: int


def sweep(
    arguments: Sequence[str], paper: str, check_data: CheckData, check_model: CheckModel = grid.unchecked
) -> "Comparison | None":
    """Do all runs of a grid, then compare them; return the comparison.

    Args:
        arguments: ``[EXPERIMENT] [key=value,value ...]``.
        paper: The printed table to compare the runs with; empty for none.
        check_data: Checks the data of one run.
        check_model: Checks whether the method and the network of one run go together.

    Raises:
        FedShiftError: If the grid is wrong, before anything starts; or if a run failed, after all others.
        SystemExit: After Ctrl-C or SIGTERM, with 130 or 143.
    """
    request = grid.read(arguments)
    points, folder = resolved(request, paper, check_data, check_model)
    held = lock(folder)
    try:
        return Sweep(folder, request, points).run(paper)
    finally:
        held.release()


def resolved(
    request: GridRequest, paper: str, check_data: CheckData, check_model: CheckModel
) -> tuple[list[Point], Path]:
    """Return the runs of a sweep, all checked, and its folder; print the notes.

    Raises:
        FedShiftError: If the grid or the table are wrong.
    """
    if paper:
        from fedshift.lab.tables.papers import printed

        printed.get(paper).check_of_runs()  # a refusal comes now, not after the last run
    points, notes = grid.points(request, check_data, check_model)
    for note in notes:
        typer.echo(note)
    return points, folder_of(request, points)


def folder_of(request: GridRequest, points: Sequence[Point]) -> Path:
    """Return the folder of a sweep."""
    given, _ = parse_arguments([f"output-dir={value}" for value in request.values.get("output-dir", ())])
    return Path(given["output-dir"]) / f"sweep-{points[0].config.experiment}-{grid.grid_hash([p.key for p in points])}"


class Sweep:
    """A sweep in its folder, whose lock the caller holds."""

    def __init__(
        self, folder: Path, request: GridRequest, points: Sequence[Point], notes: tuple[str, ...] = ()
    ) -> None:
        """Read the state of each run; ``notes`` appear below the comparison."""
        self.folder, self.request, self._notes = folder, request, notes
        self._keys: dict[Path, tuple[str, dict[str, Any]] | None] = {}  # the contents read from run folders
        self._images = Images()
        self._running: list[Job] = []
        self._forks = NO_FORKS
        self._jobs = request.options.jobs or self._places(points)
        if ended := children.end_leftovers(self.mark, "sweep"):
            typer.echo(ended)
        before = read_records(folder)
        self.records = [Record(point) for point in points]
        for record in self.records:
            known = before.get(record.point.key, {})
            record.attempts, record.seconds = int(known.get("attempts", 0)), float(known.get("seconds", 0))
            self._look_at_images(record)
        if request.options.reuse:
            self._reuse()

    @property
    def mark(self) -> str:
        """The mark in the environment of all its processes."""
        return str(self.folder)

    def _places(self, points: Sequence[Point]) -> int:
        """Return how many of these runs go on at a time, where the user does not say it."""
        return usual_jobs(points)

    def run(self, paper: str) -> "Comparison | None":
        """Do the unfinished runs, then compare all; return the comparison.

        Raises:
            FederationError: If a run failed.
            SystemExit: After Ctrl-C or SIGTERM.
        """
        finished = self._finished()
        typer.echo(f"sweep folder: {self.folder}")
        typer.echo(f"{plural(len(self.records), 'run')}, {len(finished)} of them finished")
        left = [record.point for record in self.records if record.state != "finished"]
        with (
            self._begin_forks(left) as self._forks,
            children.guarded(self._stop),
            Bar(len(self.records), len(finished)) as bar,
        ):
            self._work(bar)
        failed = [record for record in self.records if record.state == "failed"]
        for record in failed:
            typer.echo(f"failed: {record.point.label}: {record.error} (log: {self._log(record)})", err=True)
        comparison = self._compare(paper) if self._finished() else None
        typer.echo(f"sweep folder: {self.folder}")
        if failed:
            labels = ", ".join(record.point.label for record in failed)
            raise FederationError(f"{len(failed)} of {plural(len(self.records), 'run')} failed: {labels}")
        return comparison

    def _begin_forks(self, left: Sequence[Point]) -> AbstractContextManager[Forks]:
        """Begin what the runs that are left are forked from."""
        return forks.begun(left, children.environment(self.mark, alone=self._jobs == 1))

    def _work(self, bar: Bar) -> None:
        queue = deque(record for record in self.records if record.state != "finished")
        self._save()
        while queue or self._running:
            while queue and self._has_room():
                self._start(queue.popleft(), len(queue))
                self._save()
            bar.show([job.record.point.label for job in self._running], self._left(queue))
            ended = [job for job in self._running if job.child.ended]
            for job in ended:
                self._running.remove(job)
                job.child.clean_up()
                self._settle(job, queue)
                self._save()
                if job.record.state == "finished":
                    bar.advance()
                    self._show_progress(job.record, queue)
            if not ended:
                time.sleep(POLL_SECONDS)

    def _has_room(self) -> bool:
        """Tell whether one more run may start."""
        return len(self._running) < self._jobs

    def _start(self, record: Record, waiting: int) -> None:
        """Start a run, or resume it if it has a folder; so many others wait."""
        point = record.point
        arguments = [*point.arguments, f"output-dir={self.folder}"]
        workers = workers_of(point) or self._share(waiting)
        if point.is_inline and "workers" not in point.launch:
            arguments.append(f"workers={workers}")
        resumed = record.folder
        if resumed is not None:
            try:
                resuming.resolve(point.flat | {"resume": str(resumed)}, hold=False)
                arguments.append(f"resume={resumed}")
            except FedShiftError as error:
                self._begin_anew(record, resumed, str(error))
                resumed = None
        record.attempts += 1
        record.state = "running"
        child = children.start(
            run_command(), arguments, self._log(record), sweep=self.mark, key=point.key, attempt=record.attempts,
            alone=self._jobs == 1, forks=self._forks,
        )  # fmt: skip
        self._running.append(Job(record, child, resumed, workers))

    def _share(self, waiting: int) -> int:
        """Return the number of workers of a run that starts now: more than one if cores would stay idle."""
        free = min(self._jobs, worker_count.cores()) - sum(job.workers for job in self._running)
        return max(1, free // (waiting + 1))

    def _settle(self, job: Job, queue: deque[Record]) -> None:
        """Read the result of a run that has ended from disk."""
        record = job.record
        record.seconds += job.child.seconds
        self._look(record)
        if record.state == "finished":
            return
        record.error = job.child.last_error()
        if job.resumed is not None and record.error.startswith("resume: "):
            self._begin_anew(record, job.resumed, record.error)
            queue.appendleft(record)
            return
        record.failures += 1
        again = record.failures <= self.request.options.retries and not job.child.refused
        then = "it is tried again at the end" if again else "left at that"
        typer.echo(f"{record.point.label}: failed, {then}: {record.error} (log: {job.child.log})", err=True)
        if again:
            queue.append(record)
        else:
            record.state = "failed"

    def _begin_anew(self, record: Record, folder: Path, why: str) -> None:
        typer.echo(f"{record.point.label}: started again, as {folder} cannot be continued: {why}", err=True)
        record.refused.add(folder)
        record.folder = None

    def _look_at_images(self, record: Record) -> None:
        """Find the folder of a run as it was before this sweep; one on other images than today's does not count."""
        changed = ""
        for path, key, stored in self._runs(self.folder):
            if key != record.point.key or not (path / RESULTS_FILE).is_file():
                continue
            if parts := self._images.changed(record.point.config, stored):
                record.other_images.add(path)
                changed = f"{path} is finished, but {parts} had other images"
        self._look(record)
        if changed and record.state != "finished":
            typer.echo(f"{record.point.label}: done again, as {changed}", err=True)

    def _look(self, record: Record) -> None:
        """Find the folder of a run: a finished one, else the one with the most rounds."""
        folders = [
            path
            for path, key, _ in self._runs(self.folder)
            if key == record.point.key and path not in record.other_images
        ]
        finished = [path for path in folders if (path / RESULTS_FILE).is_file()]
        started = [path for path in folders if path not in record.refused]
        record.folder = max(finished or started, key=progress, default=None)
        record.state = "finished" if finished else "waiting"
        if finished:
            record.error = None
            record.seconds = max(record.seconds, record.results()["seconds"])  # a killed attempt has no time

    def _runs(self, folder: Path) -> Iterator[tuple[Path, str, dict[str, Any]]]:
        """Yield the run folders in a folder, each with the key of its point and its ``config.yaml``."""
        for file in sorted(folder.glob(f"*/{CONFIG_FILE}")):
            if file.parent not in self._keys:
                self._keys[file.parent] = read_run(file)
            known = self._keys[file.parent]
            if known is not None:
                yield file.parent, *known

    def _reuse(self) -> None:
        """Take finished runs with the same configuration and versions from other places of the output folder."""
        places = [self.folder.parent, *sorted(self.folder.parent.glob("sweep-*/"))]
        waiting = {record.point.key: record for record in self.records if record.state != "finished"}
        for path, key, stored in (run for place in places if place != self.folder for run in self._runs(place)):
            if key not in waiting or not (path / RESULTS_FILE).is_file() or stored["engine"] == DEPLOYMENT:
                continue
            label = waiting[key].point.label
            if stored.get("versions") != versions(waiting[key].point.config):
                typer.echo(f"{label}: {path} is not reused: it was made with other versions")
                continue
            if parts := self._images.changed(waiting[key].point.config, stored):
                typer.echo(f"{label}: {path} is not reused: {parts} had other images")
                continue
            record = waiting.pop(key)
            record.state, record.folder, record.reused = "finished", path, True
            record.seconds = record.results()["seconds"]
            typer.echo(f"{label}: reused from {path}")

    def _finished(self) -> list[Record]:
        return [record for record in self.records if record.state == "finished"]

    def _left(self, queue: Sequence[Record]) -> float | None:
        running = [(job.record.timed, job.child.seconds) for job in self._running]
        done = [record.timed for record in self._finished()]
        return time_left(done, running, [r.timed for r in queue], self._jobs)

    def _show_progress(self, record: Record, queue: Sequence[Record]) -> None:
        number, left = len(self._finished()), self._left(queue)
        width = len(str(len(self.records)))
        typer.echo(
            f"[{number:>{width}}/{len(self.records)}] {record.point.label}: avg "
            f"{percent(record.results()['avg'])}, {console.duration(record.seconds)}"
            + ("" if left is None else f"; left {console.duration(left)}")
        )

    def _stop(self) -> str:
        """End the runs in progress, each of which ends what it started; return how many runs are finished."""
        try:
            self._end_runs()
        finally:  # also after a second Ctrl-C
            processes.stop_marked(MARK, self.mark)
            for record in self.records:
                if record.state == "running":
                    self._look(record)
            self._running.clear()
            self._save()
        return f", {len(self._finished())} of {plural(len(self.records), 'run is', 'runs are')} finished"

    def _end_runs(self) -> None:
        """End the runs in progress and wait for them."""
        children.stop([job.child for job in self._running if isinstance(job.child, Child)])

    def _log(self, record: Record) -> Path:
        name = re.sub(r"[^\w.=-]+", "-", record.point.label)[:100]
        return self.folder / f"{name}-{record.point.key[:6]}.log"

    def _save(self) -> None:
        content = {
            "command": os.environ.get(COMMAND, ""),
            "experiment": self.records[0].point.config.experiment,
            "grid": self.request.values,
            **self.request.options.model_dump(),
            "jobs": self._jobs,
            "points": [record.saved(self.folder) for record in self.records],
        }
        write_atomically(self.folder / SWEEP_FILE, json.dumps(content, indent=2) + "\n")

    def _compare(self, paper: str) -> "Comparison | None":
        from fedshift.lab.tables.compare import compare  # torch: only when runs are compared

        runs = [record.folder for record in self._finished() if record.folder is not None]
        # The user requested the other differences that the grid varies; any further difference is still refused.
        more = any(key != "seed" and key.split(".")[0] != "method" for key in self.request.varied)
        failed = [record for record in self.records if record.state == "failed"]
        notes = (*self._notes, *(f"in no row, failed: {record.point.label}: {record.error}" for record in failed))
        try:
            comparison = compare(runs, paper=paper, allow_different=more)
        except ConfigError as error:
            if more:
                raise
            # After hours of runs the user gets a table anyway.
            comparison = compare(runs, paper=paper, allow_different=True)
            notes = (*notes, str(error))
        if notes:
            comparison = replace(
                comparison, numbers=replace(comparison.numbers, notes=(*comparison.numbers.notes, *notes))
            )
        page = self.folder / "compare.html"
        for ending, text in (
            ("md", comparison.markdown),
            ("csv", comparison.csv),
            ("html", lambda: comparison.html(page)),
        ):
            write_atomically(self.folder / f"compare.{ending}", text())
        typer.echo(comparison.text())
        typer.echo(f"comparison: {page}")
        return comparison


def usual_jobs(points: Sequence[Point]) -> int:
    """Return the default number of parallel runs: one core for each thread of each run.

    A simulation uses all cores, and a GPU serves one run.
    """
    if not all(point.is_inline for point in points):
        return 1
    return worker_count.places(max((workers_of(p) or 1) * (p.config.train.threads or 1) for p in points))


def workers_of(point: Point) -> int | None:
    """Return the requested number of workers of a run; None if the sweep decides."""
    return worker_count.requested(point.launch) if point.is_inline else 1


def lock(folder: Path) -> Lock:
    """Make the folder of a sweep and lock it.

    Raises:
        ConfigError: If it cannot be made, or another sweep is going on in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Lock(folder / LOCK_FILE)
    except InUse as holder:
        raise ConfigError(f"the sweep in {folder} is already in progress in {holder}") from None
    except OSError as error:
        raise ConfigError(f"output-dir: cannot write to {folder}: {error.strerror}") from None


def run_command() -> list[str]:
    """Return what starts a run as a process of its own; its arguments follow."""
    return forked.run_command([])
