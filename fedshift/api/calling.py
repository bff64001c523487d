"""A call in a person's own process: one at a time, leaving the environment as it was, with errors as exceptions."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from fedshift_app.run import exit_codes
from fedshift_core.env import COMMAND, COMMIT, LIVE, STATUS_FILE, THREADS
from fedshift_core.errors import FedShiftError

#: What a call puts into the environment for the processes that it starts.
_CHANGED = (COMMAND, COMMIT, LIVE, STATUS_FILE, THREADS)
_in_progress = threading.Lock()


@contextmanager
def call(command: str, *, progress: bool) -> Iterator[None]:
    """Do what a command does, in this process.

    Args:
        command: The command that does the same, as the run folder keeps it.
        progress: Whether to show how it goes on.

    Raises:
        FedShiftError: If another call is in progress in this process, or a disk fails.
        KeyboardInterrupt: After an interrupt, when what was started is ended.
    """
    if not _in_progress.acquire(blocking=False):
        raise FedShiftError(
            "fedshift: another run, sweep or search is in progress in this process; wait for it, or start a process "
            "for each (fedshift.lab.grid.sweep(..., jobs=2) does)"
        )
    before = {name: os.environ[name] for name in _CHANGED if name in os.environ}
    os.environ[COMMAND] = command
    try:
        with contextlib.nullcontext() if progress else _silence():
            yield
    except SystemExit as stop:  # how a command answers Ctrl-C
        if stop.code == exit_codes.CTRL_C:
            raise KeyboardInterrupt from None
        raise
    except OSError as error:  # a full disk or a forbidden folder, as the command says it
        raise FedShiftError(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error
    finally:
        for name in _CHANGED:
            os.environ.pop(name, None)
        os.environ.update(before)
        _in_progress.release()


class _Sieve:
    """A stream that drops what one thread writes, and passes on what all others write."""

    def __init__(self, stream: TextIO, thread: int) -> None:
        self._stream, self._thread = stream, thread

    def write(self, text: str) -> int:
        """Write a text, unless it is of the silent thread."""
        return len(text) if threading.get_ident() == self._thread else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _silence() -> Iterator[None]:
    """Drop what this thread prints; other threads go on printing."""
    thread = threading.get_ident()
    out, err = (cast(TextIO, _Sieve(stream, thread)) for stream in (sys.stdout, sys.stderr))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield
