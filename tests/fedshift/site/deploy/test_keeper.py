"""An executor that ends is started again, after pauses that double up to a bound, and the node says so."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from flwr.supernode import start_client_internal as node

from fedshift.site.deploy import node_waits
from fedshift.site.deploy.keeper import LONGEST_PAUSE, STEADY, Keeper


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Program:
    """A process that ends when a test says so."""

    def __init__(self, number: int) -> None:
        self.pid = number
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code


@pytest.fixture
def kept() -> tuple[Keeper, Clock, list[Any]]:
    """Return a keeper whose executor has been started, its clock, and all that it has started."""
    clock, started = Clock(), []

    def start(command: list[str], **options: Any) -> Any:
        assert (command, options) == (["flower-superexec", "--insecure"], {"cwd": "/"})
        started.append(Program(len(started)))
        return started[-1]

    own = Keeper(start, clock)
    assert own.start(["flower-superexec", "--insecure"], cwd="/") is started[0]
    return own, clock, started


def next_start(own: Keeper, clock: Clock, started: list[Any]) -> float:
    """Return the seconds until the next one is started."""
    since, number = clock.now, len(started)
    while len(started) == number:
        own.look()
        clock.now += 0.5
    return clock.now - 0.5 - since


def test_one_that_runs_is_left_alone(kept: tuple[Keeper, Clock, list[Any]]) -> None:
    own, clock, started = kept
    for _ in range(100):
        own.look()
        clock.now += 10
    assert len(started) == 1


def test_one_that_ends_again_and_again_is_started_ever_later(
    kept: tuple[Keeper, Clock, list[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    own, clock, started = kept
    pauses = []
    for _ in range(9):
        started[-1].code = -9
        pauses.append(next_start(own, clock, started))
    assert pauses == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    assert caplog.messages[:2] == [
        "the executor of this SuperNode has ended (by signal 9): messages wait; it starts again in 1 s",
        "the executor of this SuperNode has started again, process 1",
    ]
    clock.now += STEADY
    started[-1].code = 1
    assert next_start(own, clock, started) == 1
    assert "(exit code 1)" in caplog.text


def test_one_that_cannot_be_started_is_tried_again(
    kept: tuple[Keeper, Clock, list[Any]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own, clock, started = kept
    started[0].code = 1

    def no_memory() -> Any:
        raise OSError(12, "Cannot allocate memory")

    again = own._again
    monkeypatch.setattr(own, "_again", no_memory)
    for _ in range(20):
        own.look()
        clock.now += 0.5
    monkeypatch.setattr(own, "_again", again)
    next_start(own, clock, started)
    assert len(started) == 2
    assert "the executor cannot be started (Cannot allocate memory): next try in 2 s" in caplog.text


@pytest.mark.parametrize("seconds", [0.5, 3])
def test_a_supernode_looks_after_its_executor_whenever_it_waits(
    seconds: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Real processes, in Flower's own module: idle (3 s in plain Flower), and while a message is worked on (0.5 s)."""
    for name in ("time", "subprocess", "_pull_and_store_message"):
        monkeypatch.setattr(node, name, getattr(node, name))
    started: list[subprocess.Popen[bytes]] = []

    def start(command: list[str], *more: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return started[-1]

    monkeypatch.setattr(node_waits, "start_superexec", start)
    monkeypatch.setattr(node_waits, "Keeper", _impatient)
    node_waits.quicken_node(node, warm=True)
    module: Any = node
    module.subprocess.Popen(["flower-superexec"])
    try:
        os.kill(started[0].pid, signal.SIGKILL)
        _until(lambda: len(started) == 2, lambda: module.time.sleep(seconds))
        assert started[1].poll() is None
        assert "has ended (by signal 9)" in caplog.text
    finally:
        for process in started:
            process.kill()
            process.wait()


def _impatient(start: Callable[..., Any]) -> Keeper:
    own = Keeper(start)
    own._pause = 0.05
    return own


def _until(done: Callable[[], bool], step: Callable[[], None]) -> None:
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end
        step()
