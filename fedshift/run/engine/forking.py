"""Makes worker processes, by forks of a process that has imported the app.

It imports torch while this process starts the run, so that a worker is there in milliseconds. No thread pool is
begun and no accelerator is touched before a fork.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess

from fedshift_core.errors import ConfigError
from fedshift_core.limits import shown
from fedshift_core.plural import plural

PRELOADED = "fedshift_app.client_app"
LONGEST_TEMPORARY = 75  # characters of TMPDIR: the socket of ``multiprocessing`` lies 32 below, and may have 107


def context() -> ForkServerContext:
    """Return the multiprocessing context of the worker processes."""
    return multiprocessing.get_context("forkserver")


def begin(libraries: Sequence[str] = ()) -> None:
    """Start the process that workers are forked from, unless it runs; it imports the app in the background.

    Args:
        libraries: Packages that it imports too: what is not there is left out.

    Raises:
        ConfigError: If TMPDIR is too long for its socket.
    """
    if len(given := tempfile.gettempdir()) > LONGEST_TEMPORARY:
        raise ConfigError(
            f"TMPDIR: {plural(len(given), 'character is', 'characters are')} too many for "
            f"the socket of worker processes (at most {LONGEST_TEMPORARY}): {shown(given)}",
            "set TMPDIR to a shorter folder, or run with workers=1",
        )
    context().set_forkserver_preload([PRELOADED, *libraries])
    with _surroundings():
        forkserver.ensure_running()


def start(process: ForkServerProcess) -> None:
    """Start a process that runs only its target.

    ``multiprocessing`` would first execute the user's script again, which would start the run a second time.
    """
    begin()
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        process.start()
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _surroundings() -> Iterator[None]:
    """Let new processes import this copy of FedShift, nothing of the working folder, and ignore Ctrl-C.

    A new process inherits the environment and which signals are ignored; here both are put back.
    """
    changed = {"PYTHONSAFEPATH": "1"}  # PYTHONPATH has a checkout's packages (fedshift.put_on_path)
    before = {name: os.environ.get(name) for name in changed}
    main = threading.current_thread() is threading.main_thread()  # only the main thread may set signals
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        if main:
            signal.signal(signal.SIGINT, interrupt)
