"""A warm process, which has imported this node's ClientApp and forks a process per message in milliseconds.

It is a program with its own interpreter, run by its path: ``fork_server.py SOCKET SIGNER``. It never works on a message
itself, so messages leave no traces for the next one; it has no key, connection or thread, and has not used a GPU.
``fork_server.py --one SIGNER`` works on the one message of which it reads the task, for a node that forks none.

The app is the one that is installed here. Of a run's bundle a process has a note alone, by which the app refuses
messages of runs with other code (:mod:`fedshift_app.node.own_code`).

Many SuperNodes of one user on one machine, as in a demo, may have one process that imports all this:
``fork_server.py --share ADDRESS`` forks for each of them what it would have started (:func:`share`). It is not the
usual way: such nodes share memory, and end with whoever started that process.
"""

import contextlib
import gc
import json
import mmap
import os
import selectors
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
if __name__ == "__main__":  # before NumPy is imported, whose threads would not survive a fork
    os.environ.setdefault(BLAS_THREADS, "1")

from fedshift_app.node import node_key, own_code  # noqa: E402

LIBRARIES = ("flwr.supernode.runtime.run_clientapp", "httpcore", "numpy", "torch", "torchvision")
APP = "fedshift_app.client_app"
LIBRARIES_OF_SOME = ("timm",)  # what some runs use; imported once a child has
MOST_BYTES = 65536  # of a task
MOST_ENVIRONMENT = 262144  # bytes
FILES = 3  # standard input, output and error; the signer of a node with a key is the fourth
WAITING = 64  # connections
SHARE, ONE = "--share", "--one"
NEW = ".new"  # ends the name of a socket that does not listen yet
THREADS = Path("/proc/self/task")
_used = mmap.mmap(-1, len(LIBRARIES_OF_SOME))  # shared with all forks: 1 for each that a child has imported
TELEMETRY = "FLWR_TELEMETRY_ENABLED"  # Flower's, which counts as 1 where it is not set


class UnsafeError(Exception):
    """This process must not be forked from."""


def check_fork() -> None:
    """Check that a forked child can replace a newly started process.

    Raises:
        UnsafeError: If it cannot.
    """
    threads = len(list(THREADS.iterdir())) if THREADS.is_dir() else 1
    if threads != 1:
        raise UnsafeError(f"{threads} threads run in it; a fork ends all but one")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise UnsafeError("it has opened the GPU, which does not survive a fork")


def import_app() -> None:
    """Import this node's app and what every message needs."""
    own_code.installed()  # as it is before it is imported
    for name in (*LIBRARIES, APP):
        import_module(name)


def note_used() -> None:
    """Record which of ``LIBRARIES_OF_SOME`` this child has imported."""
    for index, name in enumerate(LIBRARIES_OF_SOME):
        if name in sys.modules:
            _used[index] = 1


def import_used() -> None:
    """Import those of ``LIBRARIES_OF_SOME`` that a child has imported: each message would do so again."""
    for index, name in enumerate(LIBRARIES_OF_SOME):
        if _used[index]:
            with contextlib.suppress(ImportError):  # the child's message told of it
                import_module(name)


def work(task: dict[str, Any]) -> NoReturn:
    """Run this node's ClientApp for one task, as ``flwr-clientapp`` runs that of the bundle, and exit."""
    code = 1
    try:
        own_code.installed()
        from flwr.supercore.tls import validate_and_resolve_root_certificates
        from flwr.supernode.runtime import run_clientapp

        flower: Any = run_clientapp
        flower.install_from_fab = own_code.take
        flower.get_load_client_app_fn = lambda **_options: lambda *_names: import_module(APP).app
        if os.environ.get(TELEMETRY) == "0":
            _keep_silent()
        flower.run_clientapp(
            runtime_api_address=task["address"],
            token=task["token"],
            insecure=task["insecure"],
            certificates=validate_and_resolve_root_certificates(task["certificates"], task["insecure"]),
            parent_pid=task["parent"],
            runtime_dependency_install=False,
        )
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        note_used()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the reply is sent, and an orderly end of torch takes longer than a fork


def _keep_silent() -> None:
    """Switch off Flower's telemetry, which starts a thread and a program (``file``) even where it may not send."""
    from flwr.supercore import telemetry
    from flwr.supernode.runtime import run_clientapp

    for module in (run_clientapp, import_module("flwr.supercore.exit.exit")):
        if getattr(module, "event", None) is telemetry.event:
            module.event = lambda *_given, **_options: None  # type: ignore[attr-defined]


def fresh() -> None:
    """Give a child its own signals and random numbers, as a new process has."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["flwr-clientapp"]
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # else all children would draw the same numbers; Python reseeds its own generator


Watched = Callable[[], None]


class ForkServer:
    """Forks a child for each task it receives, until the other end of its socket is closed."""

    def __init__(self, control: socket.socket, run: Callable[[dict[str, Any]], NoReturn] = work) -> None:
        self._control, self._run = control, run
        self._selector = selectors.DefaultSelector()
        self._over = False

    def serve(self) -> None:
        """Answer requests until the other end is closed."""
        check_fork()
        gc.collect()
        gc.freeze()  # a collection in a child would copy all pages
        self._watch(self._control, self._answer)
        self._control.sendall(b'{"ready": true}')
        while not self._over:
            for key, _ in self._selector.select():
                key.data()

    def _watch(self, what: Any, then: Watched) -> None:
        self._selector.register(what, selectors.EVENT_READ, then)

    def _answer(self) -> None:
        request = self._control.recv(MOST_BYTES)
        if not request:
            self._over = True
            return
        pid = os.fork()
        if pid == 0:
            self._let_go()
            fresh()
            self._run(json.loads(request))
        self._watch_end(pid)
        self._control.sendall(json.dumps({"pid": pid}).encode())

    def _watch_end(self, pid: int) -> None:
        """Handle the end of a child."""
        handle = os.pidfd_open(pid)

        def ended() -> None:
            self._selector.unregister(handle)
            os.close(handle)
            os.waitpid(pid, 0)
            import_used()

        self._watch(handle, ended)

    def _let_go(self) -> None:
        """Close this process's sockets in a child: the other ends must see this process end."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            else:
                os.close(key.fd)
        self._selector.close()


def refuse(control: socket.socket, why: str) -> None:
    """Report to the other end that nothing can be forked."""
    try:
        control.sendall(json.dumps({"refused": why[:500]}).encode())
    except OSError:  # there is no other end any more
        return


def origin() -> list[str]:
    """Return what decides which code a process imports."""
    return [sys.executable, os.environ.get("PYTHONPATH", "")]


def share(address: str) -> None:
    """Import, and fork a fork server for each SuperExec of this user that connects, until the parent is gone.

    A connection begins with its environment and folder, as JSON, and three or four open files.

    Args:
        address: Of a socket that is made, in a folder that nobody else can enter.

    Raises:
        UnsafeError: If this process must not be forked from.
    """
    parent = os.getppid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{address}{NEW}")
        listener.listen(WAITING)  # who comes early waits
        os.rename(f"{address}{NEW}", address)  # noqa: PTH104 - from its first moment on it listens
        listener.settimeout(1.0)
        import_app()
        check_fork()
        gc.collect()
        gc.freeze()
        while os.getppid() == parent:
            with contextlib.suppress(TimeoutError):
                control, _ = listener.accept()
                with control:
                    if os.fork() == 0:
                        listener.close()
                        serve_one(control)


def serve_one(control: socket.socket) -> NoReturn:
    """Be the fork server of one SuperExec, which must be this user's and import the same code."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.settimeout(None)
        user = struct.unpack("3i", control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        content, files, _, _ = socket.recv_fds(control, MOST_ENVIRONMENT, FILES + 1)
        if user != os.getuid() or len(files) < FILES:
            raise UnsafeError("it is of another user")
        request = json.loads(content)
        if request["origin"] != origin():
            raise UnsafeError(f"it has the libraries of {origin()}, not of {request['origin']}")
        for number, file in enumerate(files[:FILES]):
            os.dup2(file, number)
            os.close(file)
        node_key.use(files[FILES] if files[FILES:] else node_key.NONE)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        ForkServer(control).serve()
    except (UnsafeError, OSError, ValueError, KeyError) as error:
        refuse(control, str(error))
    finally:
        os._exit(0)


def main() -> None:
    """Import, and serve."""
    kind, place = sys.argv[1:3]
    if kind == SHARE:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        share(place)
        return
    node_key.use(int(place))
    if kind == ONE:
        task = json.loads(sys.stdin.read())
        fresh()
        work(task)
    control = socket.socket(fileno=int(kind))
    control.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; it ends when its SuperExec does
    try:
        os.close(os.pidfd_open(os.getpid()))  # an old system cannot tell the end of a child
        import_app()
        ForkServer(control).serve()
    except (UnsafeError, ImportError, OSError) as error:
        refuse(control, str(error))


if __name__ == "__main__":
    main()
