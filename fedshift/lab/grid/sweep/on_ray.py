"""``fedshift sweep ... --ray ADDRESS``: each run of a grid is a task of a Ray cluster.

A task is ``fedshift sweep ... --in FOLDER`` on a node, in a folder that all nodes share. Ray places it, and starts it
again where its node is lost: the run goes on from its last checkpoint.
"""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedshift.lab.grid.sweep import grid, listing, running, sweeping
from fedshift.lab.grid.sweep.children import POLL_SECONDS, STARTER, STOP_SECONDS, Attempt
from fedshift.lab.grid.sweep.records import Record
from fedshift.run.engine import NAME as INLINE
from fedshift.run.launch import processes
from fedshift_app.run import exit_codes, files
from fedshift_app.run.versions import versions
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, shortened

if TYPE_CHECKING:
    from fedshift.lab.tables.compare import Comparison

LOCK = f"{files.LOCK_FILE}-ray"  # held by the one process that hands out the runs of a folder
MOST_LOSSES = 5  # of one run; it may be what brings its nodes down
SHARED_SECONDS = 90.0  # until a network file system shows here what a node has written


def do(command: Sequence[str], folder: Path, here: Path, holder: str, there: dict[str, str], config: Any) -> str:
    """Do one run on a node, or continue it; return why it failed, or nothing."""
    node = f"node {socket.gethostname()}:"
    if not (folder / LOCK).is_file() or (folder / LOCK).read_text() != holder or not here.is_dir():
        return f"{node} it does not see {folder} and {here}: all nodes must share output-dir and the working folder"
    if other := sorted({key for key, _ in versions(config).items() ^ there.items()}):
        return f"{node} it has other versions than where the sweep was started: {', '.join(other)}"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Ray's interrupt; `ray start &` lets it be ignored
    with contextlib.ExitStack() as stack:
        stack.callback(processes.Watchdog(STARTER, me := processes.this_process()).release)
        code, lines = exit_codes.IN_USE, [""]
        while code == exit_codes.IN_USE:  # by a node that is cut off, and still at work
            code, lines = _once(command, here, {**os.environ, STARTER: me})
    named = [line for line in lines if line.startswith(("failed: ", "error: "))] or [*lines[-1:], str(code)]
    return "" if code in (exit_codes.OK, exit_codes.DEGRADED) else f"{node} {named[0]}"


def _once(command: Sequence[str], here: Path, env: dict[str, str]) -> tuple[int, list[str]]:
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, cwd=here, env=env, stdout=out, stderr=out, start_new_session=True)
        try:
            while process.poll() is None:  # Ray's interrupt is seen between two waits, not within one
                time.sleep(0.5)
        finally:
            process.terminate()
            code = process.wait(STOP_SECONDS)
        out.seek(0)
        return code, out.read().splitlines()


@dataclass
class RayRun(Attempt):
    """A run on the cluster; its node has tried it as often as ``retries`` says, so that it is not tried again."""

    task: Any
    error: str = ""

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        import ray

        return bool(ray.wait([self.task], timeout=0)[0])

    def last_error(self) -> str:
        """Return why it failed."""
        return self.error or "its node says that it is finished, but its folder holds no results; is it shared?"

    def clean_up(self) -> None:
        """Read how it ended; the node's watchdog ends what is left there."""
        import ray

        try:
            self.error = ray.get(self.task)
        except ray.exceptions.RayError as error:
            self.error = shortened(str(error).strip().splitlines()[-1])


class RaySweep(sweeping.Sweep):
    """A sweep whose runs the nodes of a cluster do."""

    here = False

    @staticmethod
    def usual_jobs(points: Sequence[grid.Point]) -> int:
        """Return how many runs the living nodes have cores for.

        Raises:
            ConfigError: If no node has cores for one; Ray would wait for such a node.
        """
        import ray

        cores = max(map(running.cores_of, points))
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        if not (rooms := sum(int(has.get("CPU", 0)) // cores for has in alive)):
            raise ConfigError(f"--ray: a run takes {cores} cores (workers x train.threads), and no node has so many")
        return rooms

    def start(self, record: Record, waiting: int) -> None:
        """Hand out a run; it takes a GPU where there are any."""
        import ray

        point, gpus = record.point, min(1, int(ray.cluster_resources().get("GPU", 0)))  # type: ignore[no-untyped-call]
        words = [*listing.run_arguments(point, self.request), f"workers={running.workers_of(point) or 1}"]
        command = [*sweep_command(), *dict.fromkeys(words), "--in", str(self.folder.absolute())]
        task = ray.remote(do).options(
            num_cpus=running.cores_of(point), num_gpus=gpus, max_retries=MOST_LOSSES, scheduling_strategy="SPREAD"
        )
        holder = (self.folder / LOCK).read_text()
        given = command, self.folder.absolute(), Path.cwd(), holder, versions(point.config), point.config
        record.child, record.state = RayRun(record.log, task.remote(*given)), "running"
        self.running.append(record)

    def settle(self, record: Record) -> None:
        """Read how a run ended, once the folder shows here what its node has written."""
        assert isinstance(record.child, RayRun)
        record.child.clean_up()
        deadline = time.monotonic() + SHARED_SECONDS * (not record.child.error)
        while record.state != "finished" and time.monotonic() < deadline:
            self.look(record)
            time.sleep(POLL_SECONDS)
        super().settle(record)

    def end(self, records: Sequence[Record]) -> None:
        """Interrupt runs, which their nodes end in order."""
        import ray

        tasks = [record.child.task for record in records if isinstance(record.child, RayRun)]
        for task in tasks:
            ray.cancel(task)
        if tasks:
            ray.wait(tasks, num_returns=len(tasks), timeout=2 * STOP_SECONDS)


def sweep(arguments: Sequence[str], paper: str, address: str) -> "Comparison | None":
    """Do all runs of a grid on the cluster at an address, then compare them, as ``sweeping.sweep``."""
    if grid.read(arguments).values.get("engine") != (INLINE,):
        raise ConfigError(f"--ray needs engine={INLINE}; engine=simulation has a Ray of its own")
    import ray

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), 5.0).close()  # Ray would wait for minutes
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, include_dashboard=None)
    except Exception as error:  # Ray raises many kinds; its own words follow
        why = shortened((str(error).strip() or type(error).__name__).splitlines()[0])
        raise ConfigError(f"--ray: no cluster of Ray answers at {as_found(address)} (HOST:PORT): {why}") from None
    finally:
        for number, handler in before.items():  # Ray puts its own there
            signal.signal(number, handler)
    try:
        request, points, notes, folder = sweeping.planned(arguments, paper)
        for note in notes:
            typer.echo(note)
        with contextlib.ExitStack() as locks:
            locks.enter_context(running.lock(folder, LOCK))
            with running.lock(folder):
                pass  # nobody else does runs there
            locks.enter_context(running.lock(folder, shared=True))
            return RaySweep(folder, request, points).run(paper)
    finally:
        ray.shutdown()


def sweep_command() -> list[str]:
    """Return what starts a sweep; its arguments follow. The working folder's modules must not come first."""
    return [sys.executable, "-P", "-m", "fedshift", "sweep"]
