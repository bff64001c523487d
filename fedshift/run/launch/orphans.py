"""Finds processes that no command waits for, for the last lines of ``fedshift status``."""

import contextlib
import json
import os
from collections import defaultdict
from pathlib import Path

import psutil

from fedshift.run.launch import processes
from fedshift_app.run.files import LOCK_FILE
from fedshift_core import atomic_io
from fedshift_core.env import STATUS_FILE
from fedshift_core.plural import plural


def leftovers() -> list[tuple[str, str]]:
    """Describe the processes that killed commands started, where their run is over or has no folder.

    Each with the command that ends them.

    A process without our mark is somebody else's work, however it is called: it is never listed.
    """
    orphans: dict[str, set[int]] = defaultdict(set)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # another user's, or gone already
            env = {} if process.uids().real != os.getuid() or processes.has_ended(process) else process.environ()
            waited_for = processes.is_running(env.get(processes.OWNER, ""))
            if processes.MARK in env and not waited_for and not _goes_on(env.get(STATUS_FILE, "")):
                orphans[env[processes.MARK]] |= {one.pid for one in processes.family(process)}
    what = "left running: {} of a command that was killed"
    return [
        (what.format(plural(len(pids), "process", "processes")), f"kill {' '.join(map(str, sorted(pids)))}")
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
