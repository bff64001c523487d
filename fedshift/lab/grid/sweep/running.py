"""Runs points, each in a process of its own: starts, continues and ends them, side by side.

The disk holds the state: a run is finished when its folder holds ``results.json``, and is continued when its
folder is there without. So whatever does runs may be killed at any moment, and goes on when it is started again.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from fedshift.lab.grid.sweep import children, forks
from fedshift.lab.grid.sweep.children import MARK, Child
from fedshift.lab.grid.sweep.grid import Options, Point
from fedshift.lab.grid.sweep.records import Images, Record, progress, read_run
from fedshift.run.launch import forked, processes, worker_count
from fedshift_app.run import resuming
from fedshift_app.run.files import CONFIG_FILE, LOCK_FILE, RESULTS_FILE
from fedshift_core.atomic_io import InUse, Lock
from fedshift_core.errors import ConfigError, FedShiftError


class SweepInUseError(ConfigError):
    """Another process does runs in the folder."""


class Runner:
    """Does runs in a folder whose lock the caller holds.

    Attributes:
        folder: The folder.
        options: ``jobs`` and ``retries``.
        running: The runs in progress.
        jobs: How many runs go on at a time.
        env: Variables of each run, where the user's environment does not set them.
        what: The kind of work, for messages.
        here: Whether runs are processes of this one, which may fork them.
    """

    what = "sweep"
    here = True

    def __init__(self, folder: Path, options: Options, points: Sequence[Point], mark: str = "") -> None:
        """End what a killed process left running there; ``mark`` is in the environment of all its processes."""
        self.folder, self.options, self.mark = folder, options, mark or str(folder)
        self.running: list[Record] = []
        self.env: Mapping[str, str] = {}
        self.jobs = options.jobs or self.usual_jobs(points)
        self.images = Images()
        self._known: dict[Path, tuple[str, dict[str, Any]] | None] = {}
        self._fork = False
        if ended := children.end_leftovers(self.mark, self.what):
            typer.echo(ended)

    @staticmethod
    def usual_jobs(points: Sequence[Point]) -> int:
        """Return the default number of runs at a time: one core for each thread of each; a simulation uses all."""
        if not all(point.is_inline for point in points):
            return 1
        return worker_count.places(max(map(cores_of, points)))

    def record(self, point: Point, place: Path | None = None) -> Record:
        """Return the state of a run, whose folders are in ``place``; those on other images do not count."""
        name = re.sub(r"[^\w.=-]+", "-", point.label)[:100]
        log = place / "run.log" if place else self.folder / f"{name}-{point.key[:6]}.log"
        record = Record(point, place or self.folder, log)
        record.place.mkdir(parents=True, exist_ok=True)
        changed = {
            path: parts
            for path, key, stored in self.folders(record.place)
            if key == point.key
            and (path / RESULTS_FILE).is_file()
            and (parts := self.images.changed(point.config, stored))
        }
        record.left_out |= changed.keys()
        self.look(record)
        if changed and record.state != "finished":
            path, parts = changed.popitem()
            why = f"{path} is finished, but {parts} had other images"
            typer.echo(f"{point.label}: done again, as {why}", err=True)
        return record

    def folders(self, place: Path) -> Iterator[tuple[Path, str, dict[str, Any]]]:
        """Yield the run folders in a folder, each with the key of its point and its ``config.yaml``."""
        for file in sorted(place.glob(f"*/{CONFIG_FILE}")):
            if file.parent not in self._known:
                self._known[file.parent] = read_run(file)
            if (known := self._known[file.parent]) is not None:
                yield file.parent, *known

    def look(self, record: Record) -> None:
        """Find the folder of a run: a finished one, else the one with the most rounds."""
        mine = {path for path, key, _ in self.folders(record.place) if key == record.point.key} - record.left_out
        finished = [path for path in mine if (path / RESULTS_FILE).is_file()]
        record.folder = max(finished or mine, key=progress, default=None)
        record.state = "finished" if finished else "waiting"
        if finished:
            record.error = None
            record.seconds = max(record.seconds, record.results()["seconds"])  # a killed attempt has no time

    def start(self, record: Record, waiting: int) -> None:
        """Start a run, or continue it if it has a folder; so many others wait."""
        point = record.point
        record.workers = workers_of(point) or self._share(waiting)
        arguments = [*point.arguments, f"output-dir={record.place}"]
        if point.is_inline and "workers" not in point.launch:
            arguments.append(f"workers={record.workers}")
        if record.folder is not None:
            try:
                resuming.resolve(point.flat | {"resume": str(record.folder)}, hold=False)
                arguments.append(f"resume={record.folder}")
            except FedShiftError as error:
                self._begin_anew(record, str(error))
        record.state = "running"
        record.child = children.start(
            run_command(),
            arguments,
            record.log,
            sweep=self.mark,
            key=point.key,
            alone=self.jobs == 1,
            env=self.env,
            fork=self._fork,
        )
        self.running.append(record)

    def _share(self, waiting: int) -> int:
        """Return the number of workers of a run that starts now: more than one if cores would stay idle."""
        free = min(self.jobs, worker_count.cores()) - sum(record.workers for record in self.running)
        return max(1, free // (waiting + 1))

    def settle(self, record: Record) -> None:
        """Read how a run ended; its state is then ``finished``, ``failed``, or ``waiting`` to be started again."""
        child, resumed = record.child, record.folder
        assert child is not None
        self.running.remove(record)
        child.clean_up()
        record.seconds += child.seconds
        self.look(record)
        if record.state == "finished":
            return
        record.error = child.last_error()
        if resumed is not None and record.error.startswith("resume: "):
            record.folder = resumed
            self._begin_anew(record, record.error)
            return
        record.failures += 1
        again = record.failures <= self.options.retries and not child.refused
        then = "it is tried again at the end" if again else "left at that"
        typer.echo(f"{record.point.label}: failed, {then}: {record.error} (log: {record.log})", err=True)
        record.state = "waiting" if again else "failed"

    def _begin_anew(self, record: Record, why: str) -> None:
        assert record.folder is not None
        typer.echo(f"{record.point.label}: started again, as {record.folder} cannot be continued: {why}", err=True)
        record.left_out.add(record.folder)
        record.folder = None

    @contextmanager
    def working(self, left: Sequence[Point]) -> Iterator[None]:
        """Do runs in the block; a failure, Ctrl-C or SIGTERM ends those in progress."""
        env = children.environment(self.mark, alone=self.jobs == 1)
        with forks.begun(left if self.here else (), env) as self._fork, children.guarded(self._stop):
            yield

    def end(self, records: Sequence[Record]) -> None:
        """End runs in progress and wait for them."""
        children.stop([record.child for record in records if isinstance(record.child, Child)])

    def _stop(self) -> str:
        """End the runs in progress, each of which ends what it started; return how many runs are finished."""
        try:
            self.end(self.running)
        finally:  # also after a second Ctrl-C
            processes.stop_marked(MARK, self.mark)
            for record in self.running:
                self.look(record)
            self.running.clear()
            self.save()
        return self.done()

    def done(self) -> str:
        """Return how many runs are finished, for the line ``stopped``."""
        return ""

    def save(self) -> None:
        """Write the state."""


def workers_of(point: Point) -> int | None:
    """Return the requested number of workers of a run; None if the runner decides."""
    return worker_count.requested(point.launch) if point.is_inline else 1


def cores_of(point: Point) -> int:
    """Return how many cores a run takes."""
    return (workers_of(point) or 1) * (point.config.train.threads or 1)


@contextmanager
def lock(folder: Path, name: str = LOCK_FILE, *, shared: bool = False) -> Iterator[None]:
    """Make a folder for runs and hold its lock in the block.

    Raises:
        ConfigError: If it cannot be made.
        SweepInUseError: If another process does runs in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = Lock(folder / name, shared=shared)
    except InUse as holder:
        raise SweepInUseError(f"the sweep in {folder} is already in progress in {holder}") from None
    except OSError as error:
        raise ConfigError(f"output-dir: cannot write to {folder}: {error.strerror}") from None
    try:
        yield
    finally:
        held.release()


def run_command() -> list[str]:
    """Return what starts a run as a process of its own; its arguments follow."""
    return forked.run_command([])
