"""``fedshift sweep --ray`` on a cluster of Ray with two nodes on this machine, one of which is killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedshift.run.launch import processes
from fedshift_app.config.files import APP

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="ends Ray's processes by /proc")]

WAIT_SECONDS = 600.0  # for anything; a busy machine starts a node of Ray in a minute
GRID = ("handwritten", "seed=0,1,2", "rounds=60", "nodes=4", "train.epochs=1", "allocation.share=0.05")
ENV = {
    "RAY_DISABLE_USAGE_STATS": "1",
    "RAY_memory_monitor_refresh_ms": "0",  # it would end tasks where others fill the memory
    "RAY_raylet_start_wait_time_s": "300",  # 30, which a busy machine exceeds
    "RAY_agent_register_timeout_ms": "300000",  # likewise
    "PYTHONPATH": os.pathsep.join(filter(None, [str(APP), os.environ.get("PYTHONPATH")])),
}


def wait_for(what: Callable[[], Any], process: "subprocess.Popen[bytes] | None" = None) -> Any:
    """Return what ``what`` returns once it is true; fail if the process ends first."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if found := what():
            return found
        if process is not None and process.poll() is not None:
            pytest.fail(f"{process.args} ended with {process.returncode}")
        time.sleep(0.2)
    pytest.fail("it took too long")


class Node:
    """A node of Ray with one core."""

    def __init__(self, home: Path, name: str, *where: str) -> None:
        self.log = home / f"{name}.log"
        command = [
            processes.command("ray"), "start", *where, "--num-cpus=1", "--object-store-memory=80000000", "--block",
            "--disable-usage-stats", "--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0",
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=os.environ | ENV, stdout=log, stderr=log)
        wait_for(lambda: b"Ray runtime started" in self.log.read_bytes(), self.process)

    def kill(self) -> None:
        """Kill all that it consists of, at once, as a power cut does; but for what its tasks have started."""
        if self.process.poll() is not None:  # the test has killed it
            return
        node = psutil.Process(self.process.pid)
        family = [child for child in node.children(recursive=True) if "fedshift" not in " ".join(child.cmdline())]
        for process in (node, *family):
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Node]]:
    """Yield the address of a cluster, and its second node."""
    home = tmp_path_factory.mktemp("ray")
    address = f"127.0.0.1:{processes.free_port()}"
    nodes: list[Node] = []
    try:
        port = address.rpartition(":")[2]
        client = f"--ray-client-server-port={processes.free_port()}"
        nodes.append(Node(home, "head", "--head", f"--port={port}", "--include-dashboard=false", client))
        nodes.append(Node(home, "second", f"--address={address}"))
        yield address, nodes[1]
    finally:
        for node in reversed(nodes):
            node.kill()


def sweep(folder: Path, *more: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "fedshift", "sweep", *GRID, f"output-dir={folder}", *more]
    with (folder.parent / "told").open("ab") as told:
        return subprocess.Popen(command, env=os.environ | ENV, stdout=told, stderr=told, cwd=folder.parent)


def rounds(folder: Path) -> list[int]:
    """Return how many rounds each run has done."""
    return [len(file.read_text().splitlines()) for file in folder.glob("sweep-*/*/metrics.jsonl")]


def processes_of(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder) in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def test_it_is_stopped_and_goes_on_and_a_killed_node_gives_its_run_to_the_other(
    cluster: tuple[str, Node], tmp_path: Path
) -> None:
    address, second = cluster
    folder = tmp_path / "runs"
    folder.mkdir()
    first = sweep(folder, "--ray", address)
    wait_for(lambda: len(rounds(folder)) >= 2 and min(rounds(folder)) >= 1, first)
    first.send_signal(signal.SIGTERM)  # a shell that starts pytest by & lets SIGINT be ignored
    assert first.wait(WAIT_SECONDS) == 143
    told = (tmp_path / "told").read_text()
    assert "stopped, 0 of 3 runs are finished" in told and "to continue: fedshift sweep handwritten" in told
    wait_for(lambda: not processes_of(folder))
    begun = len(rounds(folder))

    again = sweep(folder, "--ray", address)
    wait_for(lambda: len(processes_of(folder)) >= 5, again)  # the sweep, two nodes' tasks with a run each
    before = sum(rounds(folder))
    wait_for(lambda: sum(rounds(folder)) > before, again)
    second.kill()
    assert again.wait(WAIT_SECONDS) == 0
    told = (tmp_path / "told").read_text()
    assert "Traceback" not in told
    assert len(rounds(folder)) == 3 and begun == 2  # none was begun anew

    alone = tmp_path / "alone"
    alone.mkdir()
    assert sweep(alone, "jobs=1").wait(WAIT_SECONDS) == 0

    def hashes(where: Path) -> list[str]:
        return sorted(json.loads(file.read_text())["weights_sha256"] for file in where.glob("sweep-*/*/results.json"))

    assert hashes(folder) == hashes(alone) and len(set(hashes(alone))) == 3
