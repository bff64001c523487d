"""A process that has imported torch and the app, from which a simulation's processes or a sweep's runs are forked.

Flower's simulation, each of Ray's workers and ``flwr run`` import the same modules, up to four seconds of
a processor each; so do the runs of a sweep. Here one process imports them while the rest starts, and the others are
forked from it in milliseconds; they share its memory.

The program that would be started is replaced by ``forked.py``, which asks for a fork, passes on its
arguments, environment and open files, and lives as long as the child. It becomes the real program where no fork
can be had. The server itself runs nothing of a run: no thread, no connection, no GPU. It does not import Ray, whose
library reads a process's environment when it is loaded.
"""

import contextlib
import gc
import importlib
import io
import os
import runpy
import selectors
import signal
import socket
import sys
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedshift.run.launch.forked import COMMAND, FLWR, FORK_SERVER, LENGTH, LIFELINE, RAY, RUN, SIMULATION, receive

APP = ("torch", "fedshift_app.server_app", "fedshift_app.client_app")
#: What all processes import, by the first of their programs. The app comes before the simulation engine, which it would
#: patch through Ray.
LIBRARIES = {
    SIMULATION: (*APP, "flwr.simulation.app", "flwr.cli.app"),
    RUN: (*APP, COMMAND, "fedshift.run.launch.running", "fedshift.run.launch.runner", "fedshift.run.checking"),
}
#: Their libraries of linear algebra have threads, and end and begin them at a fork.
THREADED = {SIMULATION: ("numpy",), RUN: ("numpy", "scipy.linalg")}
LATER = "--"  # before the packages that are imported when no request is waiting
RAY_LIBRARY = "ray"
#: Settings of the allocator of pyarrow, which pandas imports where it is installed: by itself it starts a thread.
ARROW_MEMORY = "JE_ARROW_MALLOC_CONF"
WORKER = "ray._private.workers.default_worker"
WORKER_NAME = "ray::ClientApp"  # the system has room for 15 letters
RUN_NAME = "fedshift run"
THREADS = Path("/proc/self/task")
FILES = 4  # at most: standard input, output and error, and the lifeline
STANDARD = range(3)
WAITING = 64  # connections

Job = Callable[[], None]


class UnsafeError(Exception):
    """This process must not be forked from."""


def import_libraries(first: str = SIMULATION, more: Sequence[str] = ()) -> None:
    """Import what the children need.

    Args:
        first: The program that decides what they need.
        more: Packages in addition to ``LIBRARIES``; one that cannot be imported is left to the children.

    Raises:
        UnsafeError: If that leaves something behind that does not survive a fork.
    """
    os.environ.setdefault(ARROW_MEMORY, "background_thread:false")
    for name in THREADED[first]:
        importlib.import_module(name)
    threads = _threads()
    for name in LIBRARIES[first]:
        importlib.import_module(name)
    for name in more:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if first == RUN:
        importlib.import_module("fedshift_app.run.versions").own_commit()  # of the files that were imported now
    check(threads)


def check(threads: int) -> None:
    """Refuse to be forked from where more threads run than before, or something is open that a fork cannot share.

    Raises:
        UnsafeError: With the reason.
    """
    if _threads() > threads:
        raise UnsafeError(f"{_threads()} threads run after the imports, {threads} before")
    if sys.modules["torch"].cuda.is_initialized():
        raise UnsafeError("it has opened the GPU")
    if RAY_LIBRARY in sys.modules:
        raise UnsafeError("it has imported Ray")


def _freeze() -> None:
    """Let a collection of garbage in a child leave this process's pages alone: it would copy them all."""
    gc.collect()
    gc.freeze()


def _threads() -> int:
    return len(list(THREADS.iterdir()))


class ForkServer:
    """Forks a child for each request until its parent is gone.

    A connection stays open as long as the child: its end says that the other end was stopped, and the child's exit
    code is sent through it.
    """

    def __init__(self, listener: socket.socket, later: Sequence[str] = ()) -> None:
        """Serve on a socket; import ``later`` when no request is waiting."""
        self._listener = listener
        self._later = deque(later)
        self._selector = selectors.DefaultSelector()
        self._pid, self._parent = os.getpid(), os.getppid()

    def serve(self) -> Job | None:
        """Answer requests; return in each child what it has to do, and None in the server at its end."""
        _freeze()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        while os.getppid() == self._parent:
            events = self._selector.select(timeout=0.0 if self._later else 1.0)
            for key, _ in events:
                job: Job | None = key.data()
                if job is not None:
                    return job
            if self._later and not events:
                self._import(self._later.popleft())
        return None

    def _import(self, name: str) -> None:
        """Import one more library; if this process cannot be forked from after it, answer no further request."""
        threads = _threads()
        with contextlib.suppress(ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries, for their developers
            importlib.import_module(name)
        try:
            check(threads)
        except UnsafeError as error:
            print(f"no further forks, because of {name}: {error}", file=sys.stderr, flush=True)
            self._later.clear()
            self._selector.unregister(self._listener)
            self._listener.close()
        _freeze()

    def _accept(self) -> Job | None:
        connection, _ = self._listener.accept()
        try:
            request, files = receive(connection, FILES)
        except (OSError, ValueError):  # it was stopped
            connection.close()
            return None
        if not request["arguments"]:  # it only asks whether all is imported
            with connection, contextlib.suppress(OSError):
                connection.sendall(LENGTH.pack(os.getpid()))
            return None
        try:
            pid = os.fork()
        except OSError:  # no memory, or no process more
            connection.close()
            return None
        finally:
            if os.getpid() == self._pid:
                for file in files:
                    os.close(file)
        if pid == 0:
            self._let_go()
            connection.close()
            return child_of(request, files)
        with contextlib.suppress(OSError):  # it was stopped; the child follows
            connection.sendall(LENGTH.pack(pid))
        self._watch(connection, pid)
        return None

    def _watch(self, connection: socket.socket, pid: int) -> None:
        """Tell the other end of the child's end, and stop the child at the other end's."""
        child = os.pidfd_open(pid)
        watched: set[Any] = {connection, child}

        def leave(one: Any) -> bool:
            """Watch it no more; return False if that has happened before: both may end between two looks."""
            if one not in watched:
                return False
            watched.remove(one)
            self._selector.unregister(one)
            return True

        def stopped() -> None:
            if leave(connection):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(child, signal.SIGTERM)

        def ended() -> None:
            leave(child)
            leave(connection)
            os.close(child)
            with connection, contextlib.suppress(OSError):  # it was stopped
                connection.sendall(LENGTH.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))

        self._selector.register(connection, selectors.EVENT_READ, stopped)
        self._selector.register(child, selectors.EVENT_READ, ended)

    def _let_go(self) -> None:
        """Close this process's files in a child: the other ends must see this process end."""
        for key in list(self._selector.get_map().values()):
            key.fileobj.close() if isinstance(key.fileobj, socket.socket) else os.close(key.fd)
        self._selector.close()


def child_of(request: dict[str, Any], files: list[int]) -> Job:
    """Make this process, a fork, one that was started with these arguments, environment and files."""
    for number, file in zip(STANDARD, files, strict=False):
        os.dup2(file, number)
        os.close(file)
    for lifeline in files[len(STANDARD) :]:
        os.set_inheritable(lifeline, False)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    named = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*named, *(path for path in sys.path if path not in named)]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    sys.modules["numpy"].random.seed()  # else all children would draw the same; Python's own generator is seeded anew
    if os.environ.get("PYTHONUNBUFFERED") and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    program, *arguments = request["arguments"]
    return {SIMULATION: simulation, FLWR: flwr, RAY: ray_worker, RUN: run}[program](arguments)


def simulation(arguments: list[str]) -> Job:
    """Return the job of ``flwr-simulation``."""
    from flwr.simulation.app import flwr_simulation

    from fedshift_app.flower import simulating

    simulating.prepare()
    _call_process(SIMULATION)
    sys.argv = [SIMULATION, *arguments]
    return flwr_simulation


def flwr(arguments: list[str]) -> Job:
    """Return the job of ``flwr``."""
    from flwr.cli.app import app

    _call_process(FLWR)
    warnings.simplefilter("ignore", DeprecationWarning)  # as Python does; another library has changed it
    sys.argv = [FLWR, *arguments]
    return app


def ray_worker(arguments: list[str]) -> Job:
    """Return the job of Ray's worker."""
    _call_process(WORKER_NAME)
    sys.argv = [RAY, *arguments]
    return lambda: (runpy.run_module(WORKER, run_name="__main__", alter_sys=True), None)[1]


def run(arguments: list[str]) -> Job:
    """Return the job of ``fedshift run``."""
    for name in (FORK_SERVER, LIFELINE):  # they are not for the processes of this run
        os.environ.pop(name, None)
    _call_process(RUN_NAME)
    sys.argv = ["fedshift", "run", *arguments]
    entry: Job = importlib.import_module(COMMAND).main
    return entry


def _call_process(name: str) -> None:
    """Give this process a name for lists of processes; Ray's workers cannot change the title of a fork."""
    Path("/proc/self/comm").write_text(name)


def listening(address: str) -> socket.socket:
    """Return a socket with this path; who comes before it is served waits."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(WAITING)
    return listener


def main() -> None:
    """Import, and serve; in a child do its work.

    Arguments: the path of the socket to serve on, or the number of an open one; the program that is forked first;
    more packages; and after ``--`` those that are imported when no request is waiting.
    """
    address, first, *more = sys.argv[1:]
    end = more.index(LATER) if LATER in more else len(more)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(address)) if address.isdecimal() else listening(address) as listener:
        listener.set_inheritable(False)
        import_libraries(first, more[:end])
        job = ForkServer(listener, more[end + 1 :]).serve()
    if job is not None:
        job()


if __name__ == "__main__":
    main()
