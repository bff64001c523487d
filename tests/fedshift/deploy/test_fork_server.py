"""A warm process and the executor that asks it: real processes, but none of Flower's and no training."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import psutil
import pytest
from flwr.supercore import telemetry
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from support import ROOT

from fedshift.deploy import demo, fork_server, superexec
from fedshift.deploy.superexec import LostError, SharedWarmProcess, WarmExecutor, WarmProcess
from fedshift_core.env import WARM

LIMIT = 30.0
#: A warm process whose children write down what they find, in the place of a ClientApp.
PROGRAM = """
import json, os, random, socket, sys, time
from pathlib import Path
import numpy
from fedshift.deploy import fork_server

left = []

def run(task, app):
    found = {"left": list(left), "parent": os.getppid(), "app": app.fab_hash if app else "", "argv": sys.argv,
             "node": os.environ.get("NODE", ""), "drawn": [random.random(), float(numpy.random.rand())]}
    left.append(task["token"])
    found["optional"] = "colorsys" in sys.modules
    if task["token"] == "colourful":
        import colorsys
        fork_server.note_used()
    if task["token"] == "slow":
        time.sleep(2)
    part = Path(task["address"] + ".part")
    part.write_text(json.dumps(found))
    part.rename(task["address"])
    os._exit(0)

fork_server.LIBRARIES_OF_SOME = ("colorsys",)

def load(fab_hash):
    if fab_hash == "bad":
        with Path(os.environ["TRIED"]).open("a") as file:
            file.write(fab_hash)
        raise fork_server.UnsafeError("2 folders could hold its app")
    return fork_server.App(fab_hash, Path("/"))

fork_server.ForkServer(socket.socket(fileno=int(sys.argv[1])), run=run, load=load).serve()
"""
COMMAND = [sys.executable, "-P", "-c", PROGRAM]
#: The same, shared by several SuperExecs.
SHARING = (
    PROGRAM[: PROGRAM.rindex("fork_server.ForkServer")]
    + """
import functools
fork_server.import_libraries = lambda: None
fork_server.ForkServer = functools.partial(fork_server.ForkServer, run=run, load=load)
fork_server.share(sys.argv[1])
"""
)


def until(true: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + LIMIT
    while not (match := true()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return match


class Asked:
    """A warm process, and what its children wrote down."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0
        self.warm = WarmProcess(COMMAND)

    def task(self, fab_hash: str, token: str = "t") -> dict[str, Any]:
        self.number += 1
        return {"address": str(self.folder / str(self.number)), "token": token, "fab": fab_hash}

    def found(self, task: dict[str, Any]) -> dict[str, Any]:
        file = Path(task["address"])
        until(file.is_file, "no child wrote anything")
        return dict(json.loads(file.read_text()))

    def child(self, fab_hash: str, token: str = "t") -> dict[str, Any]:
        task = self.task(fab_hash, token)
        pid = self.warm.start(task)
        return self.found(task) | {"pid": pid}

    def child_of_app(self, fab_hash: str) -> dict[str, Any]:
        """Return the first child that was forked from a process that has the bundle imported."""
        return dict(until(lambda: match if (match := self.child(fab_hash))["app"] else None, "no app was imported"))


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TRIED", str(tmp_path / "tried"))
    made = Asked(tmp_path)
    yield made
    made.warm.end()


def test_each_message_has_a_process_of_its_own_in_which_nothing_is_left_of_another(asked: Asked) -> None:
    first = asked.child("one")
    assert (first["parent"], first["app"]) == (asked.warm.pid, "")
    later = [asked.child_of_app("one") for _ in range(3)]
    other = asked.child_of_app("two")
    for result in (first, *later, other):
        assert result["left"] == []
        assert result["argv"] == ["flwr-clientapp"]
    assert {result["app"] for result in later} == {"one"}
    assert other["app"] == "two"
    assert other["parent"] not in (asked.warm.pid, later[0]["parent"])
    assert len({result["pid"] for result in (first, *later, other)}) == 5
    for source in (0, 1):  # Python's and NumPy's random numbers are a new process's
        assert len({result["drawn"][source] for result in (first, *later, other)}) == 5


def test_two_apps_are_kept_and_the_one_used_longest_ago_is_let_go(asked: Asked) -> None:
    parents = {name: asked.child_of_app(name)["parent"] for name in ("one", "two")}
    asked.child_of_app("one")
    asked.child_of_app("three")
    until(lambda: not psutil.pid_exists(parents["two"]), "the app is still there")
    assert asked.child("one")["parent"] == parents["one"]
    assert asked.child("two")["app"] == ""


def test_a_library_that_only_some_runs_use_is_imported_once_a_message_has_used_it(asked: Asked) -> None:
    assert not asked.child_of_app("one")["optional"]
    assert not asked.child("one", "colourful")["optional"]
    until(lambda: asked.child("one")["optional"], "the process of its app has not imported it")
    assert asked.child_of_app("two")["optional"]


def test_an_app_that_cannot_be_imported_is_imported_by_each_message(asked: Asked) -> None:
    tried = asked.folder / "tried"
    asked.child("bad")
    until(tried.is_file, "it was not tried")
    for _ in range(3):
        result = asked.child("bad")
        assert (result["app"], result["parent"]) == ("", asked.warm.pid)
    until(lambda: not psutil.Process(asked.warm.pid).children(), "a child is left")
    assert tried.read_text() == "bad"


def test_if_the_process_of_an_app_is_killed_the_other_one_forks_and_it_comes_again(asked: Asked) -> None:
    parent = asked.child_of_app("one")["parent"]
    psutil.Process(parent).kill()
    again = asked.child("one")
    assert again["parent"] == asked.warm.pid
    assert asked.child_of_app("one")["parent"] not in (parent, asked.warm.pid)


def test_a_task_and_the_end_of_its_apps_process_seen_at_once(asked: Asked) -> None:
    """The task finds the process gone; its end, which the same look at the sockets showed, is then no news."""
    parent = asked.child_of_app("one")["parent"]
    warm = psutil.Process(asked.warm.pid)
    warm.suspend()
    psutil.Process(parent).kill()
    threading.Timer(0.5, warm.resume).start()  # by then both are there
    assert asked.child("one")["parent"] == asked.warm.pid
    assert asked.child_of_app("one")["parent"] not in (parent, asked.warm.pid)


def test_when_it_is_killed_messages_that_are_worked_on_go_on(asked: Asked) -> None:
    app = asked.child_of_app("one")["parent"]
    task = asked.task("one", "slow")
    asked.warm.start(task)
    psutil.Process(asked.warm.pid).kill()
    until(lambda: not psutil.pid_exists(app), "the process of the app outlives it")
    assert not asked.warm.is_running()
    with pytest.raises(LostError):
        asked.warm.start(asked.task("one"))
    assert asked.found(task)["app"] == "one"


class Cold:
    """In the place of Flower's executor: it counts."""

    def __init__(self) -> None:
        self.launched: list[ExecutionSpec] = []

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        self.launched.append(spec)
        return LaunchResult.accepted()

    def close(self) -> None:
        """Nothing is held."""


def spec(address: str, kind: TaskType = TaskType.CLIENT_APP, *, install: bool = False) -> ExecutionSpec:
    return ExecutionSpec(kind, address, "t", True, None, install, 1, False, 1, "one")


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Cold]]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cold: Any = Cold()
    made = WarmExecutor(cold, COMMAND)
    yield made, cold
    made.close()


def test_a_warm_process_that_was_killed_is_replaced_and_after_three_there_are_cold_ones(
    executor: tuple[Any, Cold], tmp_path: Path
) -> None:
    made, cold = executor
    for number in range(superexec.DEATHS):
        file = tmp_path / str(number)
        made.reconcile()
        made.launch(spec(str(file)))
        until(file.is_file, "no child")
        made._warm._process.kill()
        made._warm._process.wait()
    assert cold.launched == []
    made.reconcile()
    assert made._warm is None
    made.launch(spec("cold"))
    assert [process.runtime_api_address for process in cold.launched] == ["cold"]


def test_one_that_dies_before_it_answers_costs_nothing_but_time(executor: tuple[Any, Cold]) -> None:
    made, cold = executor
    made._warm._process.kill()
    made.launch(spec("cold"))
    assert [process.runtime_api_address for process in cold.launched] == ["cold"]
    made.reconcile()
    assert made._warm.is_running()


def test_other_tasks_and_runs_that_install_their_libraries_are_flowers_own(executor: tuple[Any, Cold]) -> None:
    made, cold = executor
    made.launch(spec("server", TaskType.SERVER_APP))
    made.launch(spec("install", install=True))
    assert [process.runtime_api_address for process in cold.launched] == ["server", "install"]
    assert made._warm is None


def test_what_cannot_be_forked_from_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        with pytest.raises(fork_server.UnsafeError, match="threads run in it"):
            fork_server.check_fork()
    finally:
        done.set()
        thread.join()
    monkeypatch.setattr(fork_server, "THREADS", Path("/nowhere"))
    fork_server.check_fork()
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    with pytest.raises(fork_server.UnsafeError, match="has opened the GPU"):
        fork_server.check_fork()


@pytest.mark.parametrize(("reason", "silent"), [("0", True), ("1", False), (None, False)])
def test_where_flower_may_not_report_nothing_is_prepared(
    reason: str | None, silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower would start a thread and a program for a report that it then does not send."""
    leaving: Any = import_module("flwr.supercore.exit.exit")
    entering: Any = import_module("flwr.supernode.runtime.run_clientapp")
    for module in (leaving, entering):
        monkeypatch.setattr(module, "event", telemetry.event)
    monkeypatch.delenv(fork_server.TELEMETRY, raising=False)
    if reason is not None:
        monkeypatch.setenv(fork_server.TELEMETRY, reason)
    seen: list[bool] = []

    def run_clientapp(**_: Any) -> None:
        seen.extend(module.event is not telemetry.event for module in (leaving, entering))

    def ended(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(entering, "run_clientapp", run_clientapp)
    monkeypatch.setattr(fork_server.os, "_exit", ended)
    task = {"address": "a", "token": "t", "insecure": True, "certificates": None, "parent": None}
    with pytest.raises(SystemExit):
        fork_server.work(task, None)
    assert seen == [silent, silent]


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The socket of a process that several share, and its environment."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)  # a socket's path may have 107 bytes only
    program = subprocess.Popen([sys.executable, "-P", "-c", SHARING, "warm"])
    until(Path("warm").exists, "it does not listen")
    yield "warm"
    program.kill()
    program.wait()


class Sharing(Asked):
    """One of several SuperExecs."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.number = folder, 0
        self.warm: Any = SharedWarmProcess(address)


def test_several_share_a_process_and_nothing_else(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharing = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv("NODE", name)
        sharing.append(Sharing(tmp_path / name, address))
    assert all(one.warm.is_running() for one in sharing)
    found = [[one.child("app"), one.child_of_app("app"), one.child_of_app("app")] for one in sharing]
    assert [result["left"] for of in found for result in of] == [[]] * 6
    servers = [of[0]["parent"] for of in found]
    assert len({result["parent"] for of in found for result in of}) == 4  # a server and an app's process for each
    assert len({psutil.Process(server).ppid() for server in servers}) == 1
    assert [of[2]["node"] for of in found] == ["one", "two"]  # each with its own environment
    sharing[0].warm.end()
    until(lambda: not psutil.pid_exists(servers[0]), "it outlives its SuperExec")
    assert sharing[1].child("app")["parent"] != servers[0]
    sharing[1].warm.end()


def test_with_other_libraries_or_without_the_process_a_node_has_its_own(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}/another")
    with pytest.raises(LostError, match="it has the libraries of"):
        SharedWarmProcess(address).wait()
    with pytest.raises(OSError, match="No such file"):
        SharedWarmProcess("nothing")
    for where in (address, "nothing"):
        monkeypatch.setenv(WARM, where)
        cold: Any = Cold()
        made = WarmExecutor(cold, COMMAND)
        made.reconcile()
        made.reconcile()
        made.launch(spec(str(tmp_path / "child")))
        until((tmp_path / "child").is_file, "no child")
        assert type(made._warm) is WarmProcess
        assert cold.launched == []
        made.close()
        (tmp_path / "child").unlink()


def test_one_that_ends_is_replaced_by_the_nodes_own(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WARM, address)
    cold: Any = Cold()
    made = WarmExecutor(cold, COMMAND)
    made.reconcile()
    assert type(made._warm) is SharedWarmProcess
    made.launch(spec(str(tmp_path / "child")))
    until((tmp_path / "child").is_file, "no child")
    psutil.Process(json.loads((tmp_path / "child").read_text())["parent"]).kill()
    until(lambda: made._warm is not None and not made._warm.is_running(), "it is still there")
    made.reconcile()
    assert type(made._warm) is WarmProcess
    assert cold.launched == []
    made.close()


def test_it_ends_with_whoever_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    starter = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); input()"
    command = [sys.executable, "-c", starter, sys.executable, "-P", "-c", SHARING, "warm"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        until(Path("warm").exists, "it does not listen")
        assert psutil.pid_exists(pid)
        parent.communicate("\n")
    until(lambda: not psutil.pid_exists(pid), "it outlives its starter")


def test_a_demo_shares_where_the_systems_sockets_allow_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert demo.shared(Path("/tmp/home")) == {WARM: "/tmp/home/warm"}
    assert demo.shared(Path("/tmp") / ("a" * 100)) == {}
    monkeypatch.setattr(sys, "platform", "darwin")
    assert demo.shared(Path("/tmp/home")) == {}


@pytest.mark.slow
def test_its_libraries_start_no_thread_and_bring_nothing_of_fedshift() -> None:
    """The real program, stopped once it is ready."""
    warm = WarmProcess([sys.executable, "-P", str(superexec.FORK_SERVER)])
    try:
        warm._receive(LIMIT * 4)
        assert len(list(Path(f"/proc/{warm.pid}/task").iterdir())) == 1
        maps = Path(f"/proc/{warm.pid}/maps").read_text()
        assert "libtorch_cpu" in maps
    finally:
        warm.end()
    text = superexec.FORK_SERVER.read_text() + Path(superexec.__file__).read_text()
    for name in ("fedshift_app", "fedshift_core", "datasets", "clients", "strategies"):
        assert f"import {name}" not in text and f"from {name}" not in text


@pytest.mark.slow
@pytest.mark.parametrize("library", fork_server.LIBRARIES_OF_SOME)
def test_nor_do_those_of_some_runs(library: str) -> None:
    pytest.importorskip(library)
    program = f"import os, numpy, torch, {library}; print(len(os.listdir('/proc/self/task')))"
    env = os.environ | {fork_server.BLAS_THREADS: "1"}
    assert subprocess.run([sys.executable, "-c", program], env=env, text=True, capture_output=True).stdout == "1\n"


@pytest.fixture
def apps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which Flower unpacks bundles."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "apps"


def unpack(folder: Path, module: str) -> None:
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "small"\nversion = "0.1.0"\n[tool.flwr.app]\npublisher = "us"\n'
        f'[tool.flwr.app.components]\nserverapp = "{module}:app"\nclientapp = "{module}:app"\n'
    )
    (folder / f"{module}.py").write_text("from flwr.clientapp import ClientApp\n\napp = ClientApp()\n")


def test_an_app_is_imported_from_where_its_bundle_was_unpacked(apps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"a bundle"
    fab_hash = hashlib.sha256(content).hexdigest()
    folder = apps / f"us.small.0.1.0.{fab_hash[:8]}"
    unpack(folder, "small_app_1")
    app = fork_server.import_app(fab_hash)
    assert app == fork_server.App(fab_hash, folder)
    assert sys.modules["small_app_1"].__file__ == str(folder / "small_app_1.py")
    assert app.unpacked(content, skip_prompt=True) == folder
    with pytest.raises(RuntimeError, match="differs from the one that its task names"):
        app.unpacked(b"another bundle")
    monkeypatch.delitem(sys.modules, "small_app_1")


def test_an_app_is_not_mixed_up_with_another(apps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fab_hash = "0123456789abcdef" * 4
    with pytest.raises(fork_server.UnsafeError, match="0 folders"):
        fork_server.import_app(fab_hash)
    folder = apps / f"us.small.0.1.0.{fab_hash[:8]}"
    unpack(folder, "small_app_2")
    (folder / "datasets").mkdir()
    other = ModuleType("datasets")
    other.__file__ = "/usr/lib/datasets/__init__.py"  # Hugging Face's, which a library has imported
    monkeypatch.setitem(sys.modules, "datasets", other)
    with pytest.raises(fork_server.UnsafeError, match="its module datasets is imported from /usr/lib/datasets"):
        fork_server.import_app(fab_hash)
    unpack(apps / f"them.small.0.1.0.{fab_hash[:8]}", "small_app_2")
    with pytest.raises(fork_server.UnsafeError, match="2 folders"):
        fork_server.import_app(fab_hash)
    monkeypatch.delitem(sys.modules, "small_app_2")
    assert os.environ["FLWR_HOME"] == str(apps.parent)


def test_a_forked_process_finds_imported_what_each_message_needs() -> None:
    """The warm process imports the app; what a message then imports itself, it imports each time."""
    program = """
import subprocess
import sys
from fedshift_app import client_app
from clients.features import catalog
from fedshift_app.config import registry
before = set(sys.modules)
catalog.of()
registry.get("fedavg").strategy_class(), registry.get("fedavg").client_class()
import numpy
numpy.unique([2, 1])
print(sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
