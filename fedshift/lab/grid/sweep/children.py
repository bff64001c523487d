"""Starts each run as its own process, with a log and environment marks, and ends it."""

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import typer

from fedshift.run.launch import forks, processes
from fedshift_app.run import exit_codes
from fedshift_core.env import COMMAND, SWEEP_PROCESS
from fedshift_core.plural import plural

#: In the environment of every process of a sweep: its folder; of a single run also the run's key.
MARK = "FEDSHIFT_SWEEP"
RUN_MARK = "FEDSHIFT_SWEEP_RUN"  # in the environment of every process of one run: the same, and the run's key
STARTER = SWEEP_PROCESS  # and which process started it: the watchdog of that process ends it
STOP_SECONDS = 40.0  # a run ends Flower's processes first, which may take twice processes.STOP_SECONDS
POLL_SECONDS = 0.1
ATTEMPT = b"--- attempt"  # begins what a log has of an attempt


@dataclass
class Attempt:
    """A run in progress, wherever it is.

    Attributes:
        log: What it prints.
        started: When it was started, by ``time.monotonic``.
    """

    log: Path
    started: float = field(default_factory=time.monotonic, init=False)

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        raise NotImplementedError

    @property
    def seconds(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.started

    @property
    def refused(self) -> bool:
        """Whether it ended in a way in which it would end again."""
        return True

    def last_error(self) -> str:
        """Return why it failed."""
        raise NotImplementedError

    def clean_up(self) -> None:
        """End what a run that ended badly left running."""


@dataclass
class Child(Attempt):
    """A run in progress as a process of this one.

    Attributes:
        process: Its process.
        mark: What all its processes have in their environment.
        begin: Where in the log this attempt begins, in bytes.
    """

    process: "subprocess.Popen[bytes] | ForkServerProcess"
    mark: str
    begin: int

    @property
    def code(self) -> int | None:
        """Its exit code; None before its end."""
        return self.process.poll() if isinstance(self.process, subprocess.Popen) else self.process.exitcode

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.code is not None

    @property
    def refused(self) -> bool:
        """Whether it ended because its configuration or data are refused; a retry would end the same way."""
        return self.code == exit_codes.REFUSED

    def last_error(self) -> str:
        """Return what the last line of this attempt's log with ``error:`` says, else its last line."""
        with self.log.open("rb") as file:
            file.seek(self.begin)
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()[1:] if line.strip()]
        named = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")] or lines
        return named[-1] if named else f"ended with code {self.code} without a message"

    def clean_up(self) -> None:
        """End the processes that a run which ended badly left running."""
        if self.code:
            processes.stop_marked(RUN_MARK, self.mark, also=[self.process.pid or 0])


def environment(sweep: str, *, alone: bool) -> dict[str, str]:
    """Return the user's environment with what all processes of a sweep have in theirs.

    Args:
        sweep: The sweep's mark.
        alone: A run may take all cores; otherwise its threads are one.
    """
    marked = {**os.environ, MARK: sweep, STARTER: processes.this_process()}
    return marked if alone else marked | {"OMP_NUM_THREADS": "1"}


def start(
    command: Sequence[str],
    arguments: Sequence[str],
    log: Path,
    *,
    sweep: str,
    key: str,
    alone: bool,
    env: Mapping[str, str] | None = None,
    fork: bool = False,
) -> Child:
    """Start a run.

    Args:
        command: What starts one as a process of its own; the arguments follow.
        arguments: Those of ``fedshift run``.
        log: Where it prints to, after what is there.
        sweep: The sweep's mark.
        key: Names the run in it.
        alone: It may take all cores; otherwise its threads are one.
        env: What its environment says where the user's does not.
        fork: Fork it (``forks.begun``).
    """
    mark = f"{sweep}:{key}"
    marked = {**(env or {}), **environment(sweep, alone=alone), RUN_MARK: mark}
    process: subprocess.Popen[bytes] | ForkServerProcess
    with log.open("ab") as file:
        begin = file.tell()
        file.write(ATTEMPT + f": {shlex.join(['fedshift', 'run', *arguments])}\n".encode())
        file.flush()
        if fork:
            process = forks.run(arguments, marked, file)
        else:
            process = subprocess.Popen(
                [*command, *arguments],
                env=marked,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is the sweep's: it ends its runs in order
            )
    return Child(log, process, mark, begin)


def end_leftovers(mark: str, what: str) -> str:
    """End what a killed process left running in a folder. Return a line that says so, or an empty one.

    What this process itself started may be about to end: a worker's helper outlives it by a moment, and is no leftover.

    Args:
        mark: The sweep's.
        what: The kind of work, as the line names it.
    """
    left = processes.stop_marked(MARK, mark, uncounted=(STARTER, processes.this_process()))
    if not left:
        return ""
    were = "was" if left == 1 else "were"
    return (
        f"{plural(left, 'process', 'processes')} of a {what} that was killed {were} still running here and {were} ended"
    )


@contextmanager
def guarded(stop: Callable[[], str]) -> Iterator[None]:
    """End all runs where the block fails or is stopped; after Ctrl-C or SIGTERM say how to continue.

    If this process is killed, a watchdog ends everything that it started. It does not use the sweep's mark: if the same
    sweep starts again at once, a late watchdog would end its runs too.

    Args:
        stop: Ends the runs in progress; returns what is finished, for the line ``stopped``.

    Raises:
        SystemExit: After Ctrl-C or SIGTERM.
    """
    watchdog = processes.Watchdog(STARTER, processes.this_process())
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as reason:
        typer.echo(f"stopped{stop()}", err=True)
        typer.echo(f"to continue: {os.environ.get(COMMAND, 'the same command again')}", err=True)
        raise SystemExit(exit_codes.CTRL_C if isinstance(reason, KeyboardInterrupt) else reason.code) from None
    except BaseException:
        stop()
        raise
    finally:
        watchdog.release()


def stop(running: Sequence[Child]) -> None:
    """End runs and wait until they have ended or their time is up; each run ends what it started."""
    for child in running:
        child.process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    while not all(child.ended for child in running) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
