"""Reads files in processes of their own: where one dies, its file is broken, and another process goes on.

Decoders are compiled code that trusts the lengths in a file; a damaged one may end their process (SIGSEGV). Here it is
refused by name. A process is started when there is work for it and ends with this one; a few stay for the next files.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeVar

from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_datasets.io.presence import reading

Given = TypeVar("Given")
Made = TypeVar("Made")

BATCH = 16  # files that are given to a process at a time
LONGEST = 300.0  # seconds for a batch, after which each of its files is tried alone, and refused if it takes as long
MOST, KEPT = 32, 2  # processes, and those that stay: each takes some 40 MB
_PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from fedshift_datasets.io import pool; pool.serve(int(sys.argv[1]))"


class _Process:
    """A process that reads files, or waits for them."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        with theirs:  # a group of its own gets no Ctrl-C; it ends when the pipe does
            command = [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), *sys.path]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0
            )

    def made(self, work: Callable[[Given], Made], items: Sequence[Given]) -> "list[Made | DataError]":
        """Return what ``work`` makes of items.

        Raises:
            OSError: If the process died, or takes too long; or EOFError.
        """
        try:
            here = os.getcwd()  # noqa: PTH109
        except FileNotFoundError:  # it was deleted: no relative path means a file
            here = "/"
        self._pipe.send((here, work, items))
        if not self._pipe.poll(LONGEST):
            self._process.kill()
        made: list[Made | DataError] = self._pipe.recv()
        return made

    def end(self) -> str:
        """End the process; return how it ended."""
        self._pipe.close()
        code = self._process.wait()
        return signal.Signals(-code).name if code < 0 else str(code)


_idle: list[_Process] = []
os.register_at_fork(after_in_child=_idle.clear)  # they are another process's


def serve(pipe: int) -> None:
    """Read files for the process at the other end of a pipe until that ends.

    Args:
        pipe: Its file descriptor.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what decoders say names no file, and may name a patient
    connection = Connection(pipe)
    while True:
        try:
            folder, work, items = connection.recv()
        except EOFError:
            return
        os.chdir(folder)
        connection.send([_tried(work, item) for item in items])


def _tried(work: Callable[[Given], Made], item: Given) -> Made | DataError:
    try:
        with reading(_name(item)):
            return work(item)
    except DataError as error:
        return error


def _name(item: Any) -> object:
    return item if isinstance(item, str | os.PathLike) else item.name


def mapped(work: Callable[[Given], Made], items: Iterable[Given], workers: int) -> Iterator[Made]:
    """Yield ``work(item)`` in the order of the items, made in other processes.

    Args:
        work: A function of a module, or a partial one.
        items: Files, or what has their names as ``name``.
        workers: The most processes.

    Raises:
        DataError: The first of :func:`tried`; what has not begun then is not done.
    """
    for made in tried(work, items, workers):
        if isinstance(made, DataError):
            raise made
        yield made


def tried(work: Callable[[Given], Made], items: Iterable[Given], workers: int) -> Iterator[Made | DataError]:
    """Yield ``work(item)`` as :func:`mapped`, or the reason why an item cannot be read."""
    rest = iter(items)
    batches = iter(lambda: list(islice(rest, BATCH)), [])
    try:
        with ThreadPoolExecutor(min(workers, MOST)) as threads:
            for made in threads.map(lambda batch: _made(work, batch), batches):
                yield from made
    finally:
        with contextlib.suppress(IndexError):  # another thread has taken them
            while len(_idle) > KEPT:
                _idle.pop().end()


def _made(work: Callable[[Given], Made], items: Sequence[Given]) -> "list[Made | DataError]":
    try:
        process = _idle.pop()
    except IndexError:
        process = _Process()
    try:
        made = process.made(work, items)
    except (OSError, EOFError):
        how = process.end()
        if len(items) > 1:
            return [each for item in items for each in _made(work, [item])]
        return [DataError(f"{shown(_name(items[0]))}: cannot be read (damaged: it ended its decoder, {how})")]
    _idle.append(process)
    return made
