"""``fedshift sweep ... --ray ADDRESS``: the runs of a grid as tasks of a Ray cluster.

Each task is ``fedshift sweep ... --in FOLDER`` on a node, in a folder that all nodes share; this process hands them
out, counts them, and compares. A run whose node dies is handed out again, and goes on from its last checkpoint.
"""

import contextlib
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import typer

from fedshift.lab.grid.sweep import grid, sweeping
from fedshift.lab.grid.sweep.children import POLL_SECONDS, STOP_SECONDS
from fedshift.lab.grid.sweep.forks import NO_FORKS, Forks
from fedshift.lab.grid.sweep.grid import CheckData, CheckModel, GridRequest, Point
from fedshift.lab.grid.sweep.listing import run_arguments
from fedshift.lab.grid.sweep.ray_address import KEY
from fedshift.lab.grid.sweep.ray_cluster import Cluster, LostError
from fedshift.lab.grid.sweep.ray_task import Order, Outcome
from fedshift.lab.grid.sweep.records import Record
from fedshift.lab.grid.sweep.sweeping import Job, Sweep
from fedshift.run.engine import inline
from fedshift_app.run import exit_codes
from fedshift_app.run.files import LOCK_FILE
from fedshift_app.run.versions import versions
from fedshift_core.atomic_io import InUse, Lock
from fedshift_core.errors import ConfigError
from fedshift_core.plural import plural

if TYPE_CHECKING:
    from fedshift.lab.tables.compare import Comparison

LOCK_OF_RAY = f"{LOCK_FILE}-ray"  # held by the one process that hands out the runs of a folder
MOST_LOSSES = 5  # of one run; it may be what brings its nodes down
LOOK_SECONDS = 1.0  # between two looks at how much room the cluster has
SHARED_SECONDS = 90.0  # until a network file system shows here what a node has written
STOPPED = (exit_codes.HANGUP, exit_codes.CTRL_C, exit_codes.TERMINATED)


class Given(Protocol):
    """A task, as :class:`fedshift.lab.grid.sweep.ray_cluster.Task`."""

    @property
    def ended(self) -> bool:
        """Whether it has ended."""

    def outcome(self) -> Outcome:
        """Return how; raise ``LostError`` or ``RuntimeError``."""

    def cancel(self) -> None:
        """Interrupt it."""


class Nodes(Protocol):
    """A cluster, as :class:`fedshift.lab.grid.sweep.ray_cluster.Cluster`."""

    def places(self, cores: int) -> int:
        """Return how many tasks with so many cores it holds."""

    def submit(self, order: Order, cores: int, name: str) -> Given:
        """Hand out a run."""


@dataclass
class RayRun:
    """A run on the cluster; as ``fedshift.lab.grid.sweep.children.Attempt``.

    Attributes:
        task: Ray's task.
        log: What the run prints.
        started: When it was handed out, by ``time.monotonic``.
    """

    task: Given
    log: Path
    started: float = field(default_factory=time.monotonic)
    #: A node has tried a run as often as ``retries`` says, before it tells of a failure.
    refused: bool = True
    _outcome: Outcome | None = None
    lost: str = ""  # how its node or its process was lost

    @property
    def ended(self) -> bool:
        """Whether it has ended; its outcome is then read."""
        if not self.task.ended:
            return False
        try:
            self._outcome = self.task.outcome()
        except LostError as error:
            self.lost = str(error)
        except RuntimeError as error:
            self._outcome = Outcome(exit_codes.FAILED, str(error), "")
        if self._outcome is not None and self._outcome.code in STOPPED:
            self.lost = f"it was stopped on node {self._outcome.host}"
        return True

    @property
    def seconds(self) -> float:
        """Seconds since it was handed out."""
        return time.monotonic() - self.started

    @property
    def done(self) -> bool:
        """Whether its node says that it is finished."""
        return self._outcome is not None and self._outcome.code in (exit_codes.OK, exit_codes.DEGRADED)

    def last_error(self) -> str:
        """Return why it failed."""
        if self.done:
            return "its node says that it is finished, but its folder holds no results; is the folder shared?"
        return self._outcome.error if self._outcome is not None else self.lost

    def clean_up(self) -> None:
        """Do nothing: the node's watchdog ends what is left there."""


def sweep(
    arguments: Sequence[str], paper: str, address: str, check_data: CheckData, check_model: CheckModel = grid.unchecked
) -> "Comparison | None":
    """Do all runs of a grid on a cluster, then compare them; return the comparison.

    Args:
        arguments: ``[EXPERIMENT] [key=value,value ...]``.
        paper: The printed table to compare the runs with; empty for none.
        address: The cluster's.
        check_data: Checks the data of one run.
        check_model: Checks whether the method and the network of one run go together.

    Raises:
        FedShiftError: If the address or the grid is wrong, before anything starts; or if a run failed, after all
            others.
        SystemExit: After Ctrl-C or SIGTERM, with 130 or 143.
    """
    request = grid.read(arguments)
    if (engine := grid.engine_of(request.values)) != inline.NAME:
        raise ConfigError(f"{KEY} needs engine={inline.NAME}, found engine={engine}: a simulation has a Ray of its own")
    cluster = Cluster(address)
    try:
        points, folder = sweeping.resolved(request, paper, check_data, check_model)
        check_room(cluster, points)
        with held(folder):
            return RaySweep(folder, request, points, cluster).run(paper)
    finally:
        cluster.close()


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a sweep's folder against other sweeps, but not against the single runs that nodes do in it.

    Raises:
        ConfigError: If it cannot be made, or another sweep is going on in it.
    """
    sweeping.lock(folder).release()  # refused as on one machine
    with contextlib.ExitStack() as locks:
        try:
            for file, shared in ((LOCK_FILE, True), (LOCK_OF_RAY, False)):
                locks.callback(Lock(folder / file, shared=shared).release)
        except InUse as holder:
            raise ConfigError(f"the sweep in {folder} is already in progress in {holder}") from None
        yield


def cores_of(point: Point) -> int:
    """Return how many cores a run takes on its node."""
    return (sweeping.workers_of(point) or 1) * (point.config.train.threads or 1)


def check_room(cluster: Nodes, points: Sequence[Point]) -> None:
    """Refuse runs that no node has room for; Ray would wait for such a node.

    Raises:
        ConfigError: With the number of cores.
    """
    cores = max(map(cores_of, points))
    if not cluster.places(cores):
        raise ConfigError(
            f"{KEY}: a run takes {plural(cores, 'core')} (workers x train.threads), and no node has so many"
        )


class RaySweep(Sweep):
    """A sweep whose runs are done by the nodes of a cluster; the caller holds its folder."""

    def __init__(self, folder: Path, request: GridRequest, points: Sequence[Point], cluster: Nodes) -> None:
        """Read the state of each run."""
        self._cluster, self._looked = cluster, time.monotonic()
        self._cores = max(map(cores_of, points))
        self._losses: Counter[str] = Counter()  # how often the node of each run was lost
        super().__init__(folder, request, points)

    def _places(self, points: Sequence[Point]) -> int:
        return self._cluster.places(self._cores)

    def _begin_forks(self, left: Sequence[Point]) -> contextlib.AbstractContextManager[Forks]:
        return contextlib.nullcontext(NO_FORKS)  # the runs are elsewhere

    def _has_room(self) -> bool:
        if self.request.options.jobs is None and time.monotonic() - self._looked > LOOK_SECONDS:
            self._jobs, self._looked = self._places([]), time.monotonic()  # nodes come and go
        return super()._has_room()

    def _start(self, record: Record, waiting: int) -> None:
        point = record.point
        workers = [] if "workers" in point.launch else [f"workers={sweeping.workers_of(point) or 1}"]
        order = Order(
            arguments=(*run_arguments(point, self.request), *workers), folder=str(self.folder.absolute()),
            here=str(Path.cwd()), lock=LOCK_OF_RAY, held=(self.folder / LOCK_OF_RAY).read_text(encoding="utf-8"),
            config=point.config, versions=versions(point.config),
        )  # fmt: skip
        record.attempts += 1
        record.state = "running"
        task = self._cluster.submit(order, cores_of(point), point.label)
        self._running.append(Job(record, RayRun(task, self._log(record)), None, workers=1))

    def _settle(self, job: Job, queue: deque[Record]) -> None:
        record, run = job.record, job.child
        assert isinstance(run, RayRun)
        if run.lost:
            self._losses[record.point.key] += 1
            self._look(record)
            if record.state != "finished" and self._losses[record.point.key] <= MOST_LOSSES:
                typer.echo(f"{record.point.label}: lost, another node goes on with it: {run.lost}", err=True)
                queue.appendleft(record)
                return
        deadline = time.monotonic() + SHARED_SECONDS
        while run.done and record.state != "finished" and time.monotonic() < deadline:
            self._look(record)
            time.sleep(POLL_SECONDS)
        super()._settle(job, queue)

    def _end_runs(self) -> None:
        runs = [job.child for job in self._running if isinstance(job.child, RayRun)]
        for run in runs:
            run.task.cancel()
        deadline = time.monotonic() + 2 * STOP_SECONDS
        while not all(run.ended for run in runs) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def _log(self, record: Record) -> Path:
        """Return the log of a run: a node knows no values of others, so that keys are not in its name."""
        return self.folder / f"{record.point.config.method['name']}-{record.point.key[:6]}.log"
