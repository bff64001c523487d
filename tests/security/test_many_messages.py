"""A server sends a node message after message: no process, open file or memory of one outlives its answer."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import ROOT, Run

from fedshift.run.launch import local_superlink, processes, runner
from fedshift.site.deploy import demo as deploy_demo
from fedshift.site.deploy import exporting
from fedshift.site.deploy.superexec import WarmProcess
from fedshift_app.config import resolving as configuration
from fedshift_app.node import state_folder
from fedshift_datasets.io import cache

LIMIT = 30.0
MEBIBYTE = 2**20
#: A warm process whose children end as the message says, in the place of a ClientApp.
PROGRAM = """
import os, signal, socket, sys
from fedshift.site.deploy import fork_server

def run(task, *app):
    if task["token"] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(int(task["token"]))

fork_server.ForkServer(socket.socket(fileno=int(sys.argv[1])), run=run).serve()
"""


def held(process: psutil.Process) -> tuple[int, int]:
    """Return how many files a process has open, and how many children, living or not yet waited for."""
    return process.num_fds(), len(process.children())


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> Iterator[WarmProcess]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made = WarmProcess([sys.executable, "-P", "-c", PROGRAM])
    yield made
    made.end()


def test_nothing_of_fifty_messages_stays_in_the_fork_server(warm: WarmProcess) -> None:
    """Some end well, some fail, some are killed, and some come before others have ended."""
    warm.wait()
    process, ours = psutil.Process(warm.pid), psutil.Process()
    before, of_ours = held(process), ours.num_fds()
    for number in range(50):
        token = ("0", "1", "killed")[number % 3]
        assert warm.start({"address": "", "token": token, "fab": ""}) > 0
    deadline = time.monotonic() + LIMIT
    while held(process) != before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert held(process) == before
    assert ours.num_fds() == of_ours


ROUNDS, EARLY = 125, 50  # the first rounds fill what allocators keep
TINY = "dataset.domains=[scan,sketch] model.name=cnn train.epochs=1 allocation.share=0.05"


def of_nodes() -> dict[int, tuple[str, int, int, int]]:
    """Return what the processes of all SuperNodes hold: state, open files, and memory that is theirs alone."""
    found = {}
    for child in psutil.Process().children(recursive=True):
        try:
            line = " ".join(child.cmdline())
            if any(word in line for word in ("supernode", "superexec", "fork_server")) or child.status() == "zombie":
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
