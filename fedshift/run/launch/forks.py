"""Processes forked from one that has imported torch and the app, by the fork server of ``multiprocessing``.

A worker of the inline engine, a run of a sweep, a program of a simulation and a node's ClientApp are such processes:
they begin in milliseconds, with an environment, a folder, files and arguments of their own. The fork server itself runs
nothing of a run. It does not import Ray, whose library reads a process's environment when it is loaded.
"""

import contextlib
import gc
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, BinaryIO

from fedshift.run.launch.forked import FLWR, RAY, RUN, SIMULATION
from fedshift_core.errors import ConfigError
from fedshift_core.limits import shown
from fedshift_core.plural import plural

CLIENT = "fedshift_app.client_app"
APP = ("torch", "fedshift_app.server_app", CLIENT)
#: What processes import that run these programs. The app comes before the engine, which it would patch through Ray.
OF_SIMULATIONS = (*APP, "flwr.simulation.app", "flwr.cli.app")
OF_RUNS = (*APP, "fedshift.cli", "fedshift.run.launch.running", "fedshift.run.launch.runner", "fedshift.run.checking")
LONGEST_TEMPORARY = 75  # characters of TMPDIR: the socket of ``multiprocessing`` lies 32 below, and may have 107
#: PYTHONPATH has a checkout's packages (fedshift.put_on_path); pyarrow, which pandas imports, would start a thread.
SURROUNDINGS = {"PYTHONSAFEPATH": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
File = connection.Connection  # which is handed on as an open file
context = multiprocessing.get_context("forkserver")
_env: dict[str, str] = {}


def begin(modules: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    """Start the fork server, unless it runs; it imports these modules in the background.

    Args:
        modules: Those that are not there are left out.
        env: Variables of its environment besides this process's; one with others is ended first.

    Raises:
        ConfigError: If TMPDIR is too long for its socket.
    """
    if len(given := tempfile.gettempdir()) > LONGEST_TEMPORARY:
        raise ConfigError(
            f"TMPDIR: {plural(len(given), 'character is', 'characters are')} too many for "
            f"the socket of worker processes (at most {LONGEST_TEMPORARY}): {shown(given)}",
            "set TMPDIR to a shorter folder, or run with workers=1",
        )
    if _env != (env or {}):
        end()
        _env.update(env or {})
    context.set_forkserver_preload(list(modules))
    resource_tracker.ensure_running()  # without the mark of a group, which ends its processes while this one goes on
    with _surroundings():
        forkserver.ensure_running()


def end() -> None:
    """End the fork server, whose processes have ended, and forget its environment."""
    server: Any = forkserver._forkserver
    _env.clear()
    with contextlib.suppress(ChildProcessError, TypeError):  # somebody has waited for it, or it never began
        if os.waitpid(server._forkserver_pid, os.WNOHANG) == (0, 0):
            os.kill(server._forkserver_pid, signal.SIGKILL)
        server._stop()
    server._forkserver_pid = None


def start(target: Callable[..., Any], *given: Any, name: str = "fedshift") -> ForkServerProcess:
    """Fork a process that runs only its target.

    ``multiprocessing`` would first execute the user's script again, which would start the run a second time.
    """
    with _surroundings():
        forkserver.ensure_running()
    process = context.Process(target=target, args=given, name=name)
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        process.start()
    finally:
        sys.modules["__main__"] = main
    return process


def run(arguments: Sequence[str], environment: Mapping[str, str], output: BinaryIO) -> ForkServerProcess:
    """Fork ``fedshift run`` with these arguments and environment, and all that it prints in a file."""
    files = [File(os.open(os.devnull, os.O_RDONLY)), *(File(os.dup(output.fileno())) for _ in range(2))]
    return start(be, [RUN, *arguments], environment, str(Path.cwd()), files)


@contextlib.contextmanager
def _surroundings() -> Iterator[None]:
    """Let a fork server import this copy of FedShift alone and ignore Ctrl-C, with the environment of ``begin``."""
    before = {name: os.environ.get(name) for name in SURROUNDINGS | _env}
    main = threading.current_thread() is threading.main_thread()  # only the main thread may set signals
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    os.environ.update(SURROUNDINGS | _env)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({name: value} if value is not None else {})
        if main:
            signal.signal(signal.SIGINT, interrupt)


# --- in a forked process --------------------------------------------------------------------------


def adopt(environment: Mapping[str, str]) -> None:
    """Take an environment; draw other random numbers than its siblings; let collections leave shared pages alone."""
    gc.freeze()
    os.environ.clear()
    os.environ.update(environment)
    sys.modules["numpy"].random.seed()  # nothing of ours draws from it; Python's own generator is seeded anew


def be(arguments: Sequence[str], environment: Mapping[str, str], folder: str, files: Sequence[File]) -> None:
    """Be the program that was started with these arguments, environment, folder and files; none without arguments."""
    os.setsid()  # Ctrl-C is for the command, which ends its processes in order
    for number, file in enumerate(files):
        os.dup2(file.fileno(), number)
        file.close()
    os.chdir(folder)
    adopt(environment)
    named = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*named, *(path for path in sys.path if path not in named)]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if arguments:
        name, program = PROGRAMS[arguments[0]]
        Path("/proc/self/comm").write_text(name)
        sys.argv = list(arguments)
        program()


def _simulation() -> None:
    from fedshift_app.flower import simulating, sources

    simulating.prepare()
    sources.program("flwr-simulation")()


def _flwr() -> None:
    from fedshift_app.flower import sources

    warnings.simplefilter("ignore", DeprecationWarning)  # as Python does; another library has changed it
    sources.program("flwr")()


def _ray_worker() -> None:
    runpy.run_module("ray._private.workers.default_worker", run_name="__main__", alter_sys=True)


def _run() -> None:
    sys.argv[:1] = ["fedshift", "run"]
    runpy.run_module("fedshift", run_name="__main__")


#: Each with its name in lists of processes, which has room for 15 letters.
PROGRAMS = {
    SIMULATION: (SIMULATION, _simulation),
    FLWR: (FLWR, _flwr),
    RAY: ("ray::ClientApp", _ray_worker),
    RUN: ("fedshift run", _run),
}
