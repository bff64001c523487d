"""Starts Flower's processes and ends them with all their children."""

import contextlib
import itertools
import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from fedshift_app import ROOT
from fedshift_core.errors import FedShiftError

START_SECONDS = 60.0
STOP_SECONDS = 15.0
LOADING_SECONDS = 0.05
MARK = "FEDSHIFT_PROCESS_GROUP"  # in the environment of every process of a group
OWNER = "FEDSHIFT_PROCESS_OWNER"  # likewise: which process waits for them, as :func:`this_process`
PORTS = "FEDSHIFT_PORTS"  # environment variable FIRST-LAST: the ports to choose from; unset: the system chooses
BY_FORCE_LAST = ("terminate", "kill")
ALL_DONE = b"."  # to a watchdog: the watched process has ended in order


def command(name: str) -> str:
    """Return the path of one of Flower's commands, from the environment that runs this.

    Raises:
        FedShiftError: If it is not installed there.
    """
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise FedShiftError(f"{name} is not installed next to {sys.executable}: install FedShift again")
    return str(path)


#: Ports that this process has chosen so far: what it starts may listen on them later.
_chosen = itertools.count()


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on at this moment, of ``FEDSHIFT_PORTS`` if that is set.

    Raises:
        FedShiftError: If all ports of ``FEDSHIFT_PORTS`` are taken.
    """
    first, _, last = os.environ.get(PORTS, "0-0").partition("-")
    ports = range(int(first), int(last) + 1)
    start = 8 * os.getpid() + next(_chosen)  # so that two processes do not begin with the same one
    for place in range(start, start + len(ports)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", ports[place % len(ports)]))
            return int(probe.getsockname()[1])
    raise FedShiftError(f"{PORTS}={first}-{last}: all ports are taken")


def this_process() -> str:
    """Return a name of this process that no later process with the same id has."""
    return f"{os.getpid()} {psutil.Process().create_time()}"


def is_running(named: str) -> bool:
    """Tell whether the process that :func:`this_process` named is still running."""
    number, _, created = named.partition(" ")
    try:
        process = psutil.Process(int(number))
        return str(process.create_time()) == created and not has_ended(process)
    except (psutil.Error, ValueError):
        return False


def has_ended(process: psutil.Process) -> bool:
    """Tell whether a process has ended, also where nobody has taken notice of it yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Watchdog:
    """A process that ends all marked processes once this process is killed.

    A killed process ends nothing, so its runs would train to the end, and its SuperLink would run for ever. It
    keeps a pipe to its watchdog, which sees that end however the process ended.
    """

    def __init__(self, variable: str, value: str, folder: Path | None = None) -> None:
        """Start it for ``variable=value``; it also removes ``folder`` with its contents."""
        arguments = [variable, value, *([str(folder)] if folder else [])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedshift.run.launch.watchdog", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def release(self) -> None:
        """Let it end, because the watched processes have ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # somebody ended it
            self._process.stdin.write(ALL_DONE)
            self._process.stdin.close()
        self._process.wait()


class Group(contextlib.AbstractContextManager["Group"]):
    """Processes that end with a block, with all their children, even if this process is killed.

    Attributes:
        done: They have nothing left to do, and are killed without a signal before.
    """

    done = False

    def __init__(self, folder: Path, env: Mapping[str, str], remove: Path | None = None) -> None:
        """Processes run in ``folder`` with ``env`` and log to ``folder/NAME.log``.

        Args:
            folder: Their working folder.
            env: Their environment.
            remove: A folder to remove after a kill.
        """
        self._mark = uuid.uuid4().hex
        self.folder, self.env = folder, {**env, MARK: self._mark, OWNER: this_process()}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._watchdog = Watchdog(MARK, self._mark, remove)

    def start(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        """Start a process in the background."""
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                arguments,
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running[name] = process
        return process

    def log(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.folder / f"{name}.log"

    def wait_for_http(self, name: str, url: str, ca_certificate: Path | None = None) -> None:
        """Wait until ``url`` answers; over https with a certificate that this CA signed.

        Raises:
            FedShiftError: If the process ends first or the time runs out; with the end of its log.
        """
        trust = ssl.create_default_context(cafile=ca_certificate) if ca_certificate else None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._running[name].poll() is not None:
                break
            with (
                contextlib.suppress(urllib.error.URLError, OSError),
                urllib.request.urlopen(url, timeout=1, context=trust),
            ):
                return
            time.sleep(0.1)
        raise FedShiftError(f"{name} did not start:\n{self.tail(name)}")

    def tail(self, name: str) -> str:
        """Return the end of a process's log."""
        return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-15:])

    def stop(self) -> None:
        """End all processes of the group and their children: by a signal, unless they are done, then by force.

        Flower and Ray put their processes into sessions of their own, so they are recognised by their
        environment, which they inherit.
        """
        by = ("kill",) if self.done else BY_FORCE_LAST
        stop_marked(MARK, self._mark, also={started.pid for started in self._running.values()}, by=by)
        for started in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):  # killed, so it waits for its disk only
                started.wait(STOP_SECONDS)
        self._running.clear()
        self._watchdog.release()

    def __exit__(self, *_given: object) -> None:
        self.stop()


def stop_marked(
    variable: str,
    value: str,
    uncounted: tuple[str, str] | None = None,
    also: Collection[int] = (),
    by: Sequence[str] = BY_FORCE_LAST,
) -> int:
    """End all processes with this variable in their environment, and their children: by a signal, then by force.

    Args:
        variable: The environment variable of each.
        value: Its value there.
        uncounted: A variable and its value: processes with both are ended, too, and not counted.
        also: Ids of children of this process that are ended, too, whatever their environment shows.
        by: Methods of ``psutil.Process``, one after the other.

    Returns:
        The number of processes.
    """
    members: set[psutil.Process] = set()
    left_out: set[psutil.Process] = set()
    for method in by:
        if uncounted is not None:  # first: a process that begins in between is counted rather than lost
            left_out |= _marked(*uncounted)
        members |= _marked(variable, value)
        for child in also:
            with contextlib.suppress(psutil.Error):
                members |= family(psutil.Process(child))
        for process in members:
            with contextlib.suppress(psutil.Error):
                getattr(process, method)()
        psutil.wait_procs(members, timeout=STOP_SECONDS)
    return len(members - left_out)


def _marked(variable: str, value: str, among: Iterable[psutil.Process] | None = None) -> set[psutil.Process]:
    found: set[psutil.Process] = set()
    starting: list[psutil.Process] = []
    for process in psutil.process_iter() if among is None else among:
        with contextlib.suppress(psutil.Error):  # another user's, or gone already
            environment = process.environ()
            found |= family(process) if environment.get(variable) == value else set()
            starting += [process] * (not environment)
    if starting and among is None:  # a program that has just been started shows no environment for a moment
        time.sleep(LOADING_SECONDS)
        found |= _marked(variable, value, starting)
    return found


def family(process: psutil.Process) -> set[psutil.Process]:
    """Return a process with its children: Ray's workers overwrite their environment with their title."""
    return {process, *process.children(recursive=True)}
