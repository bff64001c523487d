"""``fedshift sweep --ray`` on a cluster of Ray with two nodes on this machine, one of which is killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ray.cluster_utils import Cluster
from support import until

from fedshift_app.config.files import APP

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="ends Ray's processes by /proc")]

WAIT_SECONDS = 600.0  # for anything; a busy machine starts a node of Ray in a minute
GRID = ("handwritten", "seed=0,1,2", "rounds=60", "nodes=4", "train.epochs=1", "allocation.share=0.05")
ENV = {
    "RAY_DISABLE_USAGE_STATS": "1",
    "RAY_memory_monitor_refresh_ms": "0",  # it would end tasks where others fill the memory
    "RAY_raylet_start_wait_time_s": "300",  # 30, which a busy machine exceeds
    "RAY_agent_register_timeout_ms": "300000",  # likewise
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else Ray looks for 127.0.0.1 at another address of the machine
    "PYTHONPATH": os.pathsep.join(filter(None, [str(APP), os.environ.get("PYTHONPATH")])),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Yield a cluster of two nodes with one core each."""
    one = {"num_cpus": 1, "object_store_memory": 80_000_000, "node_ip_address": "127.0.0.1", "include_dashboard": False}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENV.items():
            patch.setenv(name, value)
        made = Cluster(initialize_head=True, head_node_args=one)
        try:
            made.add_node(**one)
            yield made
        finally:
            made.shutdown()


def sweep(folder: Path, *more: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "fedshift", "sweep", *GRID, f"output-dir={folder}", *more]
    with (folder.parent / "told").open("ab") as told:
        return subprocess.Popen(command, stdout=told, stderr=told, cwd=folder.parent)


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
    cluster: Cluster, tmp_path: Path
) -> None:
    folder, alone = tmp_path / "runs", tmp_path / "alone"
    folder.mkdir()
    alone.mkdir()
    first = sweep(folder, "--ray", cluster.address)
    assert until(lambda: sum(done > 0 for done in rounds(folder)) >= 2, WAIT_SECONDS)
    first.send_signal(signal.SIGTERM)  # a shell that starts pytest by & lets SIGINT be ignored
    assert first.wait(WAIT_SECONDS) == 143
    told = (tmp_path / "told").read_text()
    assert "stopped, 0 of 3 runs are finished" in told and "to continue: fedshift sweep handwritten" in told
    assert until(lambda: not processes_of(folder), WAIT_SECONDS)
    begun = len(rounds(folder))

    again = sweep(folder, "--ray", cluster.address)
    assert until(lambda: len(processes_of(folder)) >= 5, WAIT_SECONDS)  # the sweep, two nodes' tasks with a run each
    before = sum(rounds(folder))
    assert until(lambda: sum(rounds(folder)) > before, WAIT_SECONDS)
    (second,) = cluster.worker_nodes
    cluster.remove_node(second, allow_graceful=False)  # as a power cut does
    assert again.wait(WAIT_SECONDS) == 0
    assert "Traceback" not in (tmp_path / "told").read_text()
    assert len(rounds(folder)) == 3 and begun == 2  # none was begun anew

    assert sweep(alone, "jobs=1").wait(WAIT_SECONDS) == 0
    here, there = (
        sorted(json.loads(file.read_text())["weights_sha256"] for file in where.glob("sweep-*/*/results.json"))
        for where in (folder, alone)
    )
    assert here == there and len(set(here)) == 3
