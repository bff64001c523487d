"""Finds processes that no command waits for, for the last lines of ``fedshift status``."""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from fedshift.run.launch.processes import MARK, OWNER, is_running
from fedshift_app.run.files import LOCK_FILE
from fedshift_core import atomic_io
from fedshift_core.env import STATUS_FILE
from fedshift_core.plural import plural


@dataclass(frozen=True)
class Leftover:
    """Some of this user's processes.

    Attributes:
        what: A description of them.
        pids: Their ids, ascending.
    """

    what: str
    pids: tuple[int, ...]

    @property
    def command(self) -> str:
        """Return the command that ends them."""
        return f"kill {' '.join(map(str, self.pids))}"

    def __str__(self) -> str:
        return f"left running: {self.what}; to end: {self.command}"


def leftovers() -> list[Leftover]:
    """Return the processes that killed commands started, where their run is over or has no folder.

    A process without our mark is somebody else's work, however it is called: it is never listed.
    """
    orphans: dict[str, set[int]] = {}
    for process, environment in _own():
        mark = environment.get(MARK)
        if mark is None or is_running(environment.get(OWNER, "")) or _goes_on(environment.get(STATUS_FILE, "")):
            continue
        orphans.setdefault(mark, set()).update(_with_children(process))
    return [
        Leftover(f"{plural(len(pids), 'process', 'processes')} of a command that was killed", tuple(sorted(pids)))
        for pids in orphans.values()
    ]


def _goes_on(status_file: str) -> bool:
    """Tell whether the run that a file names is in progress: its ServerApp holds the lock of the run folder."""
    try:
        folder = json.loads(Path(status_file).read_text(encoding="utf-8"))["run_folder"]
    except (OSError, ValueError, LookupError, TypeError):  # gone, or no run was begun
        return False
    try:
        return folder is not None and atomic_io.is_locked(Path(folder) / LOCK_FILE)
    except OSError:  # a file system that does not tell
        return True


def _own() -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """Return this user's processes with their environments."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # another user's, or gone already
            if process.uids().real == os.getuid() and process.status() != psutil.STATUS_ZOMBIE:
                yield process, process.environ()


def _with_children(process: psutil.Process) -> set[int]:
    # Ray's workers overwrite their environment with their title.
    return {process.pid, *(child.pid for child in process.children(recursive=True))}
