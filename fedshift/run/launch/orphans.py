"""Finds processes that no command waits for, for the last lines of ``fedshift status``."""

import contextlib
import json
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import psutil

from fedshift.run.launch import processes
from fedshift_app.run.files import LOCK_FILE
from fedshift_core import atomic_io
from fedshift_core.env import STATUS_FILE
from fedshift_core.plural import plural


@dataclass(frozen=True)
class Leftover:
    """Some of this user's processes.

    Attributes:
        pids: Their ids, ascending.
    """

    pids: tuple[int, ...]

    @property
    def what(self) -> str:
        """Return a description of them."""
        return f"{plural(len(self.pids), 'process', 'processes')} of a command that was killed"

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
    orphans: dict[str, set[int]] = defaultdict(set)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # another user's, or gone already
            env = {} if process.uids().real != os.getuid() or processes.has_ended(process) else process.environ()
            waited_for = processes.is_running(env.get(processes.OWNER, ""))
            if processes.MARK in env and not waited_for and not _goes_on(env.get(STATUS_FILE, "")):
                orphans[env[processes.MARK]] |= {one.pid for one in processes.family(process)}
    return [Leftover(tuple(sorted(pids))) for pids in orphans.values()]


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
