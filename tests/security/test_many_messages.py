"""A server sends a node message after message: no process, open file or memory of one outlives its answer."""

import gc
import json
import multiprocessing
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from support import APP_PATH, ROOT, Run

from fedshift.run.launch import forks, local_superlink, processes, runner
from fedshift.site.deploy import demo as deploy_demo
from fedshift.site.deploy import exporting
from fedshift.site.deploy.superexec import NodeExecutor
from fedshift_app.config import resolving as configuration
from fedshift_app.node import state_folder
from fedshift_datasets.io import cache

LIMIT = 30.0
MEBIBYTE = 2**20
#: Processes that end as the message says, in the place of a ClientApp.
LIBRARY = """
import os, signal
import numpy
from fedshift.site.deploy import fork_server

def run(task):
    if task["token"] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(int(task["token"]))

fork_server.work = run
"""


def held(process: psutil.Process) -> tuple[int, int]:
    """Return how many files a process has open, and how many children, living or not yet waited for."""
    return process.num_fds(), len(process.children())


def _more(now: tuple[int, int], before: tuple[int, int]) -> bool:
    return any(later > first for later, first in zip(now, before, strict=True))


def test_nothing_of_fifty_messages_stays_in_the_fork_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some end well, some fail, some are killed, and some come before others have ended."""
    (tmp_path / "ends.py").write_text(LIBRARY)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{APP_PATH}")
    executor = NodeExecutor(modules=["ends"])
    executor.reconcile()
    ours = psutil.Process()
    living = (child for child in ours.children() if child.status() != psutil.STATUS_ZOMBIE)
    (server,) = (child for child in living if "forkserver" in " ".join(child.cmdline()))
    before, of_ours = held(server), ours.num_fds()
    for number in range(50):
        token = ("0", "1", "killed")[number % 3]
        spec = ExecutionSpec(TaskType.CLIENT_APP, "a", token, True, None, False, 1, False, 1, "one")
        assert executor.launch(spec) == LaunchResult.accepted()
    deadline = time.monotonic() + LIMIT
    while (multiprocessing.active_children() or _more(held(server), before)) and time.monotonic() < deadline:
        time.sleep(0.02)
    gc.collect()
    assert not _more(held(server), before)  # what it opened to begin with may be closed by now
    assert ours.num_fds() <= of_ours
    forks.end()


ROUNDS, EARLY = 125, 50  # the first rounds fill what allocators keep
TINY = "dataset.domains=[scan,sketch] model.name=cnn train.epochs=1 allocation.share=0.05"


def of_nodes() -> dict[int, tuple[str, int, int, int]]:
    """Return what the processes of all SuperNodes hold: state, open files, and memory that is theirs alone."""
    found = {}
    for child in psutil.Process().children(recursive=True):
        try:
            line = " ".join(child.cmdline())
            if any(word in line for word in ("supernode", "superexec", "deploy.warm")) or child.status() == "zombie":
                found[child.pid] = (
                    child.status(),
                    child.num_fds(),
                    child.memory_full_info().uss // MEBIBYTE,
                    child.ppid(),
                )
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
@pytest.mark.long
def test_five_hundred_messages_to_two_nodes(tmp_path: Path) -> None:
    """Processes that are there early in the run hold as many files late in it, hardly more memory, and no child."""
    folders = exporting.export(configuration.resolve({"experiment": "handwritten", "set": TINY}), 2, tmp_path / "nodes")
    own = {cache.CACHE_DIR: str(tmp_path / "cache"), state_folder.STATE_DIR: str(tmp_path / "state")}
    environment = local_superlink.environment(tmp_path) | own | {"PYTHONPATH": str(ROOT)}
    seen: list[dict[int, Any]] = []

    with processes.group(local_superlink.empty_folder(tmp_path), environment) as flower:
        link = local_superlink.SuperLink(processes.free_port(), deploy_demo.make_credentials(tmp_path))
        local_superlink.start_superlink(flower, link)
        local_superlink.connect(tmp_path, link)
        for folder in folders:
            deploy_demo.start_supernode(flower, link, folder, deploy_demo.make_node_key(flower, tmp_path, folder))
        for rounds in (EARLY, ROUNDS - EARLY):
            flat = {"experiment": "handwritten", "rounds": rounds, "output-dir": str(tmp_path / "runs")}
            run = Run(runner.submit(flower, tmp_path, flat | {"set": f"{TINY} federation.min_nodes=2"}, []))
            assert len(run.rounds) == rounds and not run.results.get("lost")
            time.sleep(2)
            seen.append(of_nodes())
    early, late = seen
    lasting = early.keys() & late.keys()
    assert len(lasting) >= 6, (early, late)  # of each node: SuperNode, SuperExec, fork server
    assert Counter(state for state, *_ in late.values())["zombie"] == 0
    assert len(late) <= len(early)
    for pid in lasting:
        assert late[pid][1] <= early[pid][1] + 2, (early[pid], late[pid])
        assert late[pid][2] <= early[pid][2] * 1.1 + 10, (early[pid], late[pid])
    messages = sum(
        json.loads(line)["kind"] == "reply" for file in (tmp_path / "state").glob("*/out.jsonl") for line in file.open()
    )
    assert messages >= 500
