"""A warm process, which has imported a ClientApp's libraries and forks a process per message in milliseconds.

It is a program with its own interpreter, run by its path: ``fork_server.py SOCKET``. It never works on a message
itself, so messages leave no traces for the next one; it has no key, connection or thread, and has not used a GPU.

The app's code comes with each run, as a bundle that Flower unpacks. So this process imports nothing of FedShift's that
is installed here, only libraries. Once a child has answered for a bundle, another process is forked that imports the
app from where the bundle lies, and later messages of the same bundle (the same SHA-256) are forked from that one.

Many SuperNodes of one user on one machine, as in a demo, may have one process that imports the libraries:
``fork_server.py --share ADDRESS`` forks for each of them what it would have started (:func:`share`). It is not the
usual way: such nodes share memory, and end with whoever started that process.
"""

import contextlib
import gc
import hashlib
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
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

LIBRARIES = ("flwr.supernode.runtime.run_clientapp", "httpcore", "numpy", "torch", "torchvision")
LIBRARIES_OF_SOME = ("timm",)  # what some runs use; imported once a child has
MOST_APPS = 2  # bundles that are kept imported; the one that was used longest ago is let go
MOST_BYTES = 65536  # of a task
MOST_ENVIRONMENT = 262144  # bytes
BLAS_THREADS = "OPENBLAS_NUM_THREADS"
FILES = 3  # standard input, output and error
WAITING = 64  # connections
SHARE = "--share"
NEW = ".new"  # ends the name of a socket that does not listen yet
THREADS = Path("/proc/self/task")
_used = mmap.mmap(-1, len(LIBRARIES_OF_SOME))  # shared with all forks: 1 for each that a child has imported
TELEMETRY = "FLWR_TELEMETRY_ENABLED"  # Flower's, which counts as 1 where it is not set


class UnsafeError(Exception):
    """This process must not be forked from."""


@dataclass(frozen=True)
class App:
    """An app whose modules this process has imported.

    Attributes:
        fab_hash: SHA-256 of its bundle.
        folder: Where the bundle was unpacked.
    """

    fab_hash: str
    folder: Path

    def unpacked(self, content: bytes, *_given: Any, **_options: Any) -> Path:
        """Take the place of Flower's ``install_from_fab``.

        Raises:
            RuntimeError: If the bundle is not the one that was imported.
        """
        if hashlib.sha256(content).hexdigest() != self.fab_hash:
            raise RuntimeError("the run's app bundle differs from the one that its task names")
        return self.folder


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


def import_libraries() -> None:
    """Import what every ClientApp needs."""
    for name in LIBRARIES:
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


def import_app(fab_hash: str) -> App:
    """Import the app of a bundle that Flower has unpacked on this machine, as a ClientApp's process does.

    Raises:
        UnsafeError: If its location is ambiguous, or other modules have its names.
    """
    from flwr.clientapp.utils import get_load_client_app_fn
    from flwr.common.config import get_metadata_from_config, get_project_config, get_project_dir

    unnamed = get_project_dir("a/b", "0", fab_hash)
    places = list(unnamed.parent.glob(f"*.{unnamed.name.rpartition('.')[2]}"))
    if (found := len(places)) != 1:
        raise UnsafeError(f"{found} folders could hold its app")
    folder = places[0]
    fab_id, version = get_metadata_from_config(get_project_config(folder))
    get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)(fab_id, version, fab_hash)
    for name in {path.stem for path in folder.iterdir()} & sys.modules.keys():
        file = getattr(sys.modules[name], "__file__", None)
        if file is None or not Path(file).resolve().is_relative_to(folder.resolve()):
            raise UnsafeError(f"its module {name} is imported from {file}")
    return App(fab_hash, folder)


def work(task: dict[str, Any], app: App | None) -> NoReturn:
    """Run the ClientApp for one task, as ``flwr-clientapp`` does, and exit."""
    code = 1
    try:
        from flwr.supercore.tls import validate_and_resolve_root_certificates
        from flwr.supernode.runtime import run_clientapp

        flower: Any = run_clientapp
        if app is not None:
            flower.install_from_fab = app.unpacked
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

    def __init__(
        self,
        control: socket.socket,
        *,
        load: Callable[[str], App] = import_app,
        run: Callable[[dict[str, Any], App | None], NoReturn] = work,
        app: App | None = None,
    ) -> None:
        self._control, self._load, self._run, self._app = control, load, run, app
        self._selector = selectors.DefaultSelector()
        self._apps: dict[str, socket.socket] = {}  # in order of last use
        self._ready: set[str] = set()
        self._hopeless: set[str] = set()
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
        task = json.loads(request)
        pid = self._forward(request, task["fab"]) or self._fork_for(task)
        self._control.sendall(json.dumps({"pid": pid}).encode())

    def _forward(self, request: bytes, fab_hash: str) -> int | None:
        """Forward a task to the process that has imported the app; return None if there is none."""
        if fab_hash not in self._ready:
            return None
        channel = self._apps.pop(fab_hash)
        self._apps[fab_hash] = channel
        try:
            channel.sendall(request)
            return int(json.loads(channel.recv(MOST_BYTES))["pid"])
        except (OSError, ValueError, KeyError):  # it was ended
            self._drop(fab_hash)
            return None

    def _fork_for(self, task: dict[str, Any]) -> int:
        pid = os.fork()
        if pid == 0:
            self._let_go()
            fresh()
            self._run(task, self._app)
        self._watch_end(pid, task["fab"])
        return pid

    def _watch_end(self, pid: int, fab_hash: str) -> None:
        """Handle the end of a child; after a bundle's first child, start a process that imports its app."""
        handle = os.pidfd_open(pid)

        def ended() -> None:
            self._selector.unregister(handle)
            os.close(handle)
            _, status = os.waitpid(pid, 0)
            if self._app is not None:
                import_used()
            elif status == 0 and fab_hash and fab_hash not in self._apps.keys() | self._hopeless:
                self._import(fab_hash)

        self._watch(handle, ended)

    def _import(self, fab_hash: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            self._let_go()
            ours.close()
            warm_app(theirs, fab_hash, self._load, self._run)
        theirs.close()
        self._apps[fab_hash] = ours
        self._watch(ours, lambda: self._note_ready(fab_hash, ours))
        self._watch_end(pid, "")
        for oldest in list(self._apps)[:-MOST_APPS]:
            self._drop(oldest)

    def _note_ready(self, fab_hash: str, channel: socket.socket) -> None:
        """Record that an app is imported, cannot be imported, or that its process has ended."""
        if self._apps.get(fab_hash) is not channel:  # an event of the same poll dropped it
            return
        report = channel.recv(MOST_BYTES)
        if report and "ready" in json.loads(report):
            self._ready.add(fab_hash)
            return
        if report:
            self._hopeless.add(fab_hash)
            print(f"no warm process for this app: {json.loads(report)['refused']}", file=sys.stderr, flush=True)
        self._drop(fab_hash)

    def _drop(self, fab_hash: str) -> None:
        channel = self._apps.pop(fab_hash)
        self._ready.discard(fab_hash)
        self._selector.unregister(channel)
        channel.close()

    def _let_go(self) -> None:
        """Close this process's sockets in a child: the other ends must see this process end."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            else:
                os.close(key.fd)
        self._selector.close()


def warm_app(control: socket.socket, fab_hash: str, load: Callable[[str], App], run: Any) -> NoReturn:
    """Run the process that has imported a bundle's app, and what that used of ``LIBRARIES_OF_SOME``."""
    try:
        app = load(fab_hash)
        import_used()
        ForkServer(control, run=run, app=app).serve()
    except Exception as error:  # any: the app's modules are the run's
        refuse(control, f"{type(error).__name__}: {error}")
    finally:
        os._exit(0)


def refuse(control: socket.socket, why: str) -> None:
    """Report to the other end that nothing can be forked."""
    try:
        control.sendall(json.dumps({"refused": why[:500]}).encode())
    except OSError:  # there is no other end any more
        return


def origin() -> list[str]:
    """Return what decides which libraries a process imports."""
    return [sys.executable, os.environ.get("PYTHONPATH", "")]


def share(address: str) -> None:
    """Import, and fork a fork server for each SuperExec of this user that connects, until the parent is gone.

    A connection begins with its environment and folder, as JSON, and three open files.

    Args:
        address: Of a socket that is made, in a folder that nobody else can enter.

    Raises:
        UnsafeError: If this process must not be forked from.
    """
    parent = os.getppid()
    os.environ.setdefault(BLAS_THREADS, "1")  # as ``superexec.WarmProcess`` has it, before NumPy is imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{address}{NEW}")
        listener.listen(WAITING)  # who comes early waits
        os.rename(f"{address}{NEW}", address)  # noqa: PTH104 - from its first moment on it listens
        listener.settimeout(1.0)
        import_libraries()
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
    """Be the fork server of one SuperExec, which must be this user's and import the same libraries."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.settimeout(None)
        user = struct.unpack("3i", control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        content, files, _, _ = socket.recv_fds(control, MOST_ENVIRONMENT, FILES)
        if user != os.getuid() or len(files) != FILES:
            raise UnsafeError("it is of another user")
        request = json.loads(content)
        if request["origin"] != origin():
            raise UnsafeError(f"it has the libraries of {origin()}, not of {request['origin']}")
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
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
    if sys.argv[1] == SHARE:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        share(sys.argv[2])
        return
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; it ends when its SuperExec does
    try:
        os.close(os.pidfd_open(os.getpid()))  # an old system cannot tell the end of a child
        import_libraries()
        ForkServer(control).serve()
    except (UnsafeError, ImportError, OSError) as error:
        refuse(control, str(error))


if __name__ == "__main__":
    main()
