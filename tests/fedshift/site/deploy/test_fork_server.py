"""A warm process and the executor that asks it: real processes, but none of Flower's and no training."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest
from flwr.supercore import telemetry
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from support import APP_PATH

from fedshift.site.deploy import demo, fork_server, superexec
from fedshift.site.deploy.superexec import LostError, NodeExecutor, SharedWarmProcess, WarmProcess
from fedshift_core.env import WARM

LIMIT = 30.0
#: A warm process whose children write down what they find, in the place of a ClientApp.
PROGRAM = """
import functools, json, os, random, socket, sys, time
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
from pathlib import Path
import numpy
from fedshift.site.deploy import fork_server

left = []

def run(task):
    found = {"left": list(left), "parent": os.getppid(), "argv": sys.argv,
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

fork_server.work = run
fork_server.import_app = lambda: None
fork_server.ForkServer = functools.partial(fork_server.ForkServer, run=run)
fork_server.main()
"""
COMMAND = [sys.executable, "-P", "-c", PROGRAM]


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

    def task(self, token: str = "t") -> dict[str, Any]:
        self.number += 1
        return {"address": str(self.folder / str(self.number)), "token": token}

    def found(self, task: dict[str, Any]) -> dict[str, Any]:
        file = Path(task["address"])
        until(file.is_file, "no child wrote anything")
        return dict(json.loads(file.read_text()))

    def child(self, token: str = "t") -> dict[str, Any]:
        task = self.task(token)
        pid = self.warm.start(task)
        return self.found(task) | {"pid": pid}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    monkeypatch.setenv("PYTHONPATH", APP_PATH)
    made = Asked(tmp_path)
    yield made
    made.warm.end()


def test_each_message_has_a_process_of_its_own_in_which_nothing_is_left_of_another(asked: Asked) -> None:
    found = [asked.child() for _ in range(4)]
    for result in found:
        assert result["left"] == []
        assert result["argv"] == ["flwr-clientapp"]
        assert result["parent"] == asked.warm.pid
    assert len({result["pid"] for result in found}) == 4
    for source in (0, 1):  # Python's and NumPy's random numbers are a new process's
        assert len({result["drawn"][source] for result in found}) == 4


def test_a_library_that_only_some_runs_use_is_imported_once_a_message_has_used_it(asked: Asked) -> None:
    assert not asked.child()["optional"]
    assert not asked.child("colourful")["optional"]
    until(lambda: asked.child()["optional"], "the warm process has not imported it")


def test_when_it_is_killed_messages_that_are_worked_on_go_on(asked: Asked) -> None:
    task = asked.task("slow")
    asked.warm.start(task)
    psutil.Process(asked.warm.pid).kill()
    until(lambda: not asked.warm.is_running(), "it is still there")
    with pytest.raises(LostError):
        asked.warm.start(asked.task())
    assert asked.found(task)["left"] == []


def spec(address: str, kind: TaskType = TaskType.CLIENT_APP, *, silent: bool = False) -> ExecutionSpec:
    return ExecutionSpec(kind, address, "t", True, None, False, 1, silent, 1, "one")


class Node:
    """A SuperExec's executor, and what the processes that it starts write down."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.number = folder, 0
        self.executor: Any = NodeExecutor(program=COMMAND, **options)

    def launch(self, *, silent: bool = False) -> dict[str, Any]:
        self.number += 1
        file = self.folder / f"launched-{self.number}"
        assert self.executor.launch(spec(str(file), silent=silent)) == LaunchResult.accepted()
        until(file.is_file, "no process wrote anything")
        return dict(json.loads(file.read_text()))

    @property
    def pid(self) -> int | None:
        return None if self.executor._warm is None else self.executor._warm.pid


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Node]:
    monkeypatch.setenv("PYTHONPATH", APP_PATH)
    made = Node(tmp_path)
    yield made
    made.executor.close()


def test_a_warm_process_that_was_killed_is_replaced_and_after_three_there_are_cold_ones(node: Node) -> None:
    for _ in range(superexec.DEATHS):
        node.executor.reconcile()
        assert node.launch()["parent"] == node.pid
        node.executor._warm._process.kill()
        node.executor._warm._process.wait()
    node.executor.reconcile()
    assert node.pid is None
    assert node.launch()["parent"] == os.getpid()


def test_one_that_dies_before_it_answers_costs_nothing_but_time(node: Node) -> None:
    node.executor._warm._process.kill()
    assert node.launch()["parent"] == os.getpid()
    node.executor.reconcile()
    assert node.executor._warm.is_running()


def test_a_task_whose_output_nobody_wants_has_a_new_process(node: Node) -> None:
    assert node.launch(silent=True)["parent"] == os.getpid()
    assert node.executor._warm.is_running()


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
        fork_server.work(task)
    assert seen == [silent, silent]


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The socket of a process that several share, and its environment."""
    monkeypatch.setenv("PYTHONPATH", APP_PATH)
    monkeypatch.chdir(tmp_path)  # a socket's path may have 107 bytes only
    program = subprocess.Popen([sys.executable, "-P", "-c", PROGRAM, "--share", "warm"])
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
    found = [[one.child(), one.child(), one.child()] for one in sharing]
    assert [result["left"] for of in found for result in of] == [[]] * 6
    servers = [of[0]["parent"] for of in found]
    assert len({result["parent"] for of in found for result in of}) == 2  # a server for each
    assert len({psutil.Process(server).ppid() for server in servers}) == 1
    assert [of[2]["node"] for of in found] == ["one", "two"]  # each with its own environment
    sharing[0].warm.end()
    until(lambda: not psutil.pid_exists(servers[0]), "it outlives its SuperExec")
    assert sharing[1].child()["parent"] == servers[1]
    sharing[1].warm.end()


@pytest.mark.slow
def test_the_program_itself_can_be_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no thread after its imports, whatever environment it was started with."""
    monkeypatch.delenv(fork_server.BLAS_THREADS, raising=False)
    monkeypatch.setenv("PYTHONPATH", APP_PATH)
    monkeypatch.chdir(tmp_path)
    program = subprocess.Popen([sys.executable, "-P", fork_server.__file__, fork_server.SHARE, "warm"])
    try:
        until(Path("warm").exists, "it does not listen")
        warm = SharedWarmProcess("warm")
        warm.wait()
        assert warm.is_running()
        warm.end()
    finally:
        program.kill()
        program.wait()


def test_with_other_libraries_or_without_the_process_a_node_has_its_own(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{APP_PATH}{os.pathsep}/another")
    with pytest.raises(LostError, match="it has the libraries of"):
        SharedWarmProcess(address).wait()
    with pytest.raises(OSError, match="No such file"):
        SharedWarmProcess("nothing")
    for where in (address, "nothing"):
        monkeypatch.setenv(WARM, where)
        made = Node(tmp_path)
        made.executor.reconcile()
        made.executor.reconcile()
        assert type(made.executor._warm) is WarmProcess
        assert made.launch()["parent"] == made.pid
        made.executor.close()
        (tmp_path / "launched-1").unlink()


def test_one_that_ends_is_replaced_by_the_nodes_own(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WARM, address)
    made = Node(tmp_path)
    made.executor.reconcile()
    assert type(made.executor._warm) is SharedWarmProcess
    psutil.Process(made.launch()["parent"]).kill()
    until(lambda: not made.executor._warm.is_running(), "it is still there")
    made.executor.reconcile()
    assert type(made.executor._warm) is WarmProcess
    made.executor.close()


def test_it_ends_with_whoever_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", APP_PATH)
    monkeypatch.chdir(tmp_path)
    starter = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); input()"
    command = [sys.executable, "-c", starter, sys.executable, "-P", "-c", PROGRAM, "--share", "warm"]
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
def test_what_it_imports_starts_no_thread() -> None:
    """The real program, stopped once it is ready."""
    warm = WarmProcess([sys.executable, "-P", str(superexec.FORK_SERVER)])
    try:
        warm._receive(LIMIT * 4)
        assert len(list(Path(f"/proc/{warm.pid}/task").iterdir())) == 1
        maps = Path(f"/proc/{warm.pid}/maps").read_text()
        assert "libtorch_cpu" in maps
    finally:
        warm.end()


@pytest.mark.slow
@pytest.mark.parametrize("library", fork_server.LIBRARIES_OF_SOME)
def test_nor_do_those_of_some_runs(library: str) -> None:
    pytest.importorskip(library)
    program = f"import os, numpy, torch, {library}; print(len(os.listdir('/proc/self/task')))"
    env = os.environ | {fork_server.BLAS_THREADS: "1"}
    assert subprocess.run([sys.executable, "-c", program], env=env, text=True, capture_output=True).stdout == "1\n"


def test_a_forked_process_finds_imported_what_each_message_needs() -> None:
    """The warm process imports the app; what a message then imports itself, it imports each time."""
    program = """
import subprocess
import sys
from fedshift_app import client_app
from fedshift_clients import features
from fedshift_core.features import ours
from fedshift_app.config import registry
before = set(sys.modules)
features.Features((feature, None) for feature in ours())
registry.get("fedavg").strategy_class(), registry.get("fedavg").client_class()
import numpy
numpy.unique([2, 1])
print(sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
