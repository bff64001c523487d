"""Finds processes that no command waits for, for the last lines of ``fedshift status``."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from fedshift.launch.processes import MARK, OWNER, is_running
from fedshift_app.flower.internals import is_superlink
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
    """Return the processes of killed commands, and the SuperLinks that plain ``flwr run`` leaves running."""
    orphans: dict[str, set[int]] = {}
    links: set[int] = set()
    for process, environment in _own():
        mark = environment.get(MARK)
        if mark is None and is_superlink(process) and "--simulation" in process.cmdline():
            links |= _with_children(process)
        elif mark is not None and OWNER in environment and not is_running(environment[OWNER]):
            orphans.setdefault(mark, set()).update(_with_children(process))
    left = [
        Leftover(f"{plural(len(pids), 'process', 'processes')} of a command that was killed", tuple(sorted(pids)))
        for pids in orphans.values()
    ]
    if links:
        left.append(Leftover("Flower's local SuperLink, which plain `flwr run` starts", tuple(sorted(links))))
    return left


def _own() -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """Return this user's processes with their environments."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # another user's, or gone already
            if process.uids().real == os.getuid() and process.status() != psutil.STATUS_ZOMBIE:
                yield process, process.environ()


def _with_children(process: psutil.Process) -> set[int]:
    # Ray's workers overwrite their environment with their title.
    return {process.pid, *(child.pid for child in process.children(recursive=True))}
