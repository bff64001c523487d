"""A server sends a node message after message: no process, open file or memory of one outlives its answer."""

import gc
import multiprocessing
import os
from pathlib import Path

import psutil
import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from support import APP_PATH, until

from fedshift.run.launch import forks
from fedshift.site.deploy.superexec import NodeExecutor

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


def test_nothing_of_fifty_messages_stays_in_the_fork_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some end well, some fail, some are killed, and some come before others have ended."""
    (tmp_path / "ends.py").write_text(LIBRARY)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{APP_PATH}")
    executor = NodeExecutor(modules=["ends"])
    executor.reconcile()
    ours = psutil.Process()
    living = (child for child in ours.children() if child.status() != psutil.STATUS_ZOMBIE)
    (server,) = (child for child in living if "forkserver" in " ".join(child.cmdline()))
    files, children, of_ours = server.num_fds(), len(server.children()), ours.num_fds()
    for number in range(50):
        token = ("0", "1", "killed")[number % 3]
        spec = ExecutionSpec(TaskType.CLIENT_APP, "a", token, True, None, False, 1, False, 1, "one")
        assert executor.launch(spec) == LaunchResult.accepted()
    # What it opened to begin with may be closed by now.
    assert until(lambda: not multiprocessing.active_children() and server.num_fds() <= files)
    assert until(lambda: len(server.children()) <= children)  # living, or not yet waited for
    gc.collect()
    assert ours.num_fds() <= of_ours
    forks.end()
