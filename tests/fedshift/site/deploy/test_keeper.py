"""An executor that ends is started again, after a pause, and the node says so."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.supernode import start_client_internal as node
from support import until

from fedshift.site.deploy import node_waits
from fedshift.site.deploy.node_waits import PAUSE, Keeper

COMMAND = ["flower-superexec", "--insecure"]


class Kept:
    """A keeper whose executor has been started, with a clock that a test moves."""

    def __init__(self) -> None:
        self.now, self.started, self.memory = 0.0, list[Any](), True
        self.own = Keeper(self._start, lambda: self.now)
        assert self.own.start(COMMAND, cwd="/") is self.started[0]

    def _start(self, command: list[str], **options: Any) -> Any:
        assert (command, options) == (COMMAND, {"cwd": "/"})
        if not self.memory:
            raise OSError(12, "Cannot allocate memory")
        program = SimpleNamespace(pid=len(self.started), code=None)
        program.poll = lambda: program.code
        self.started.append(program)
        return program

    def look(self, times: int) -> float:
        """Look until another one is started; return the seconds."""
        since, number = self.now, len(self.started)
        while len(self.started) == number and times:
            self.own.look()
            self.now, times = self.now + 0.5, times - 1
        return self.now - 0.5 - since


def test_one_that_ends_is_started_again_after_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    kept, pauses = Kept(), []
    kept.look(1000)
    assert len(kept.started) == 1  # one that runs is left alone
    for _ in range(3):
        kept.started[-1].code = -9
        pauses.append(kept.look(1000))
    assert pauses == [PAUSE] * 3
    assert "by signal 9" in caplog.messages[0] and "5 s" in caplog.messages[0] and "process 1" in caplog.messages[1]
    kept.started[-1].code = 1
    assert kept.look(1000) == PAUSE and "exit code 1" in caplog.text


@pytest.mark.parametrize("seconds", [0.5, 3])
def test_a_supernode_looks_after_its_executor_whenever_it_waits(
    seconds: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Real processes, in Flower's own module: idle (3 s in plain Flower), and while a message is worked on (0.5 s)."""
    for name in ("time", "subprocess", "_pull_and_store_message"):
        monkeypatch.setattr(node, name, getattr(node, name))
    started: Any = []

    def start(*_: Any) -> Any:
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return started[-1]

    monkeypatch.setattr(node_waits, "start_superexec", start)
    monkeypatch.setattr(node_waits, "PAUSE", 0.05)
    node_waits.quicken_node(node, warm=True)
    module: Any = node
    module.subprocess.Popen(["flower-superexec"])
    try:
        os.kill(started[0].pid, signal.SIGKILL)
        assert until(lambda: module.time.sleep(seconds) or len(started) == 2)
        assert started[1].poll() is None and "by signal 9" in caplog.text
    finally:
        for process in started:
            process.kill()
            process.wait()
