"""A node's executor and the processes that it forks: real ones, but none of Flower's and no training."""

import json
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from support import APP_PATH, ran, until

from fedshift.run.launch import forks
from fedshift.site.deploy import fork_server, superexec
from fedshift.site.deploy.superexec import NodeExecutor
from fedshift_app.flower import sources
from fedshift_app.node import own_code

#: Processes write down what they find, in the place of a ClientApp.
LIBRARY = """
import json, os, random, sys
from pathlib import Path
import numpy
from fedshift.site.deploy import fork_server

left = []

def run(task):
    found = {"left": list(left), "parent": os.getppid(), "pid": os.getpid(),
             "drawn": [random.random(), float(numpy.random.rand())]}
    left.append(task["token"])
    part = Path(task["address"] + ".part")
    part.write_text(json.dumps(found))
    part.rename(task["address"])
    os._exit(0)

fork_server.work = run
"""
COLD = "import json, sys, library; library.run(json.loads(sys.stdin.read()))"


class Node:
    """A SuperExec's executor, and what the processes that it starts write down."""

    def __init__(self, folder: Path, *modules: str) -> None:
        self.folder, self.number = folder, 0
        self.executor = NodeExecutor(modules=modules, program=[sys.executable, "-c", COLD])

    def launch(self, *, silent: bool = False) -> Any:
        self.number += 1
        file = self.folder / f"launched-{self.number}"
        spec = ExecutionSpec(TaskType.CLIENT_APP, str(file), "t", True, None, False, 1, silent, 1, "one")
        assert self.executor.launch(spec) == LaunchResult.accepted()
        assert until(file.is_file), "no process wrote anything"
        return json.loads(file.read_text())


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "library.py").write_text(LIBRARY)
    (tmp_path / "unfit.py").write_text("raise RuntimeError('an import has begun a thread')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{APP_PATH}")
    yield tmp_path
    forks.end()


def test_each_message_has_a_process_of_its_own_in_which_nothing_is_left_of_another(folder: Path) -> None:
    node = Node(folder, "library")
    node.executor.reconcile()
    found = [node.launch() for _ in range(4)]
    assert not any(result["left"] for result in found) and len({result["pid"] for result in found}) == 4
    assert len({result["parent"] for result in found} | {os.getpid()}) == 2
    # Python's and NumPy's random numbers are a new process's.
    assert all(len({*drawn}) == 4 for drawn in zip(*(result["drawn"] for result in found), strict=True))
    assert node.launch(silent=True)["parent"] == os.getpid()  # nobody wants its output: it is a new process
    server = psutil.Process(found[0]["parent"])
    server.kill()
    assert until(lambda: server.status() == psutil.STATUS_ZOMBIE), "it is still there"
    assert node.launch()["parent"] not in (os.getpid(), server.pid)  # there is another one


def test_where_nothing_can_be_forked_every_message_has_a_new_process(folder: Path) -> None:
    node = Node(folder, "library", "unfit")
    for _ in range(superexec.DEATHS + 1):
        assert node.launch()["parent"] == os.getpid()
    assert node.executor._deaths == superexec.DEATHS


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ((True, None, None), ["--insecure"]),
        ((False, "ca.crt", 7), ["--root-certificates", "ca.crt", "--parent-pid", "7"]),
    ],
)
def test_a_task_is_worked_on_by_flowers_program_with_this_nodes_app(
    given: Any, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    flower: Any = import_module(sources.CLIENT_APP)
    for name in ("install_from_fab", "get_load_client_app_fn", "run_clientapp"):
        monkeypatch.setattr(flower, name, getattr(flower, name))
    monkeypatch.setattr(fork_server.os, "_exit", sys.exit)
    monkeypatch.setattr(sys, "argv", [])
    seen: list[Any] = []
    loaded = lambda: flower.get_load_client_app_fn(multi_app=True)("id", "1", "0")  # noqa: E731
    monkeypatch.setattr(
        sources, "program", lambda _: lambda: seen.extend([sys.argv, flower.install_from_fab, loaded()])
    )
    with pytest.raises(SystemExit):
        fork_server.work(
            {"address": "a:1", "token": "-t"} | dict(zip(("insecure", "certificates", "parent"), given, strict=True))
        )
    assert seen[0] == ["flwr-clientapp", "--runtime-api-address=a:1", "--token=-t", *options]
    assert seen[1:] == [own_code.take, import_module("fedshift_app.client_app").app]


def test_a_process_with_this_nodes_app_can_be_forked_from() -> None:
    """Also with the networks of timm; it refuses that itself once a thread runs or the GPU is open."""
    program = """
import importlib, threading, time
from fedshift.site.deploy import warm
print("fit")
threading.Thread(target=time.sleep, args=(999,), daemon=True).start()
importlib.reload(warm)
"""
    ended = ran("-c", program, env={fork_server.BLAS_THREADS: "1"})
    assert ended.stdout == "fit\n" and "neither survives a fork" in ended.stderr


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
    assert ran("-c", program, check=True).stdout.splitlines()[-1] == "[]"
