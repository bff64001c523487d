"""Flower's fixed waits are replaced where they are the known ones, and nowhere else."""

import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import httpx
import pytest
from flwr.app import Message, RecordDict
from flwr.proto.message_pb2 import Context
from flwr.proto.runtime_pb2 import PushTaskOutputRequest
from flwr.supercore import heartbeat
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.superlink.grid import http_grid
from flwr.supernode import fleet_http_connection as connection
from flwr.supernode import start_client_internal as node
from flwr.supernode.runtime import run_clientapp
from flwr.supernode.servicer.runtime import runtime_handlers
from refusals import worded
from support import refusal_of

from fedshift.site.deploy import node_waits
from fedshift_app.flower import internals, quick_grid, sources
from fedshift_app.flower.internals import identify_process
from fedshift_app.flower.waits import Backoff
from fedshift_core.errors import FedShiftError


class Clock:
    """Time that passes when somebody sleeps, or works."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def test_waits_grow_by_a_twentieth_within_bounds_and_begin_again_after_a_success() -> None:
    clock = Clock()
    waits = Backoff(0.05, 3.0, clock=clock, sleep=clock.sleep)
    while clock.now < 1200:
        before = clock.now - 1000
        waits.wait()
        assert clock.waits[-1] == pytest.approx(min(max(0.05, 0.05 * before), 3.0))
    assert len(clock.waits) < 200  # in 200 s; a plain SuperNode asks 67 times, one that never slows down 4,000
    waits.restart()
    waits.wait()
    assert clock.waits[-1] == 0.05


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> http_grid.HttpGrid:
    """Return Flower's own grid; how soon parts are asked for again is as it was after the test."""
    monkeypatch.setitem(pull_objects.__kwdefaults__, "initial_backoff", 1.0)
    return http_grid.HttpGrid(token="t", insecure=True)


@pytest.mark.parametrize(("timeout", "expected"), [(None, 1), (0.0, 0)])
def test_replies_are_looked_for_soon(
    timeout: float | None, expected: int, grid: http_grid.HttpGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's two looks would be three seconds apart."""
    clock = Clock()
    monkeypatch.setattr(quick_grid, "Backoff", partial(Backoff, clock=clock, sleep=clock.sleep))
    quick_grid.quicken(grid)
    reply = SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id="a"))
    monkeypatch.setattr(grid, "push_messages", lambda messages: ["a"])
    monkeypatch.setattr(grid, "pull_messages", Mock(side_effect=[[], [], [reply]]))
    assert len([*grid.send_and_receive([], timeout=timeout)]) == expected
    assert clock.waits == [quick_grid.LOOK_SECONDS] * 2 * expected


@pytest.mark.parametrize("asked", [True, False])
def test_a_grid_of_another_flower_is_left_alone(
    asked: bool, grid: http_grid.HttpGrid, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if asked:
        monkeypatch.setenv(quick_grid.PLAIN_WAITS, "1")
    else:
        monkeypatch.setitem(sources.READ, f"{sources.GRID}:HttpGrid", "another")
    quick_grid.quicken(grid)
    assert "send_and_receive" not in vars(grid)
    assert (f"{sources.GRID}:HttpGrid" in caplog.text) != asked


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], str]:
    """Return a function that runs a SuperNode, which does what it is given, and returns the error."""

    def start(command: Callable[[], Any]) -> str:
        monkeypatch.setattr(sources, "program", lambda _name: command)
        return refusal_of(FedShiftError, node_waits.run_supernode, ["--insecure"], warm=True)

    for name in ("quicken_node", "keep_bundles", "keep_place"):
        monkeypatch.setattr(node_waits, name, Mock())
    monkeypatch.setattr(node_waits, "give_up", lambda problem: Mock(side_effect=FedShiftError(problem))())
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(node_waits.signal, "signal", Mock())
    monkeypatch.setenv("PATH", os.environ["PATH"])
    return start


@pytest.mark.parametrize(
    ("module", "name"),
    [(runtime_handlers, "pull_task_input"), (run_clientapp, "run_clientapp"), (node, "_pull_and_store_message")],
)
def test_a_node_whose_flower_has_other_parts_does_not_start(
    module: ModuleType, name: str, started: Callable[[Callable[[], Any]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could unpack a run's bundle and import it by another way than the one that is closed."""
    monkeypatch.setattr(module, name, lambda *given: None)
    assert f"{module.__name__}:{name} of Flower 1." in started(lambda: pytest.fail("started"))


@pytest.mark.parametrize("raised", [None, ValueError("no start line")])
def test_a_node_that_cannot_go_on_ends(raised: Exception | None, started: Callable[[Callable[[], Any]], str]) -> None:
    worded(started(Mock(side_effect=raised)), "SuperNode", *[raised] * (raised is not None))


def test_its_end_waits_for_no_thread() -> None:
    """Flower's thread, which serves the node's own processes, would keep the process of a dead node alive."""
    program = """
import threading
from fedshift.site.deploy import node_waits
threading.Thread(target=threading.Event().wait).start()
node_waits.give_up("it is over")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (1, "error: it is over\n")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a client of a SuperLink which answers with ``answers``, and its waits."""
    answers, waits = list[Any](), list[float]()

    def call(self: Any, request: Any) -> Any:
        status = answers.pop(0) if answers else 200
        if isinstance(status, int):
            httpx.Response(status, request=httpx.Request("POST", "http://127.0.0.1")).raise_for_status()
            return SimpleNamespace(success=True)
        return status

    client = type("Client", (), {"ActivateNode": call, "SendNodeHeartbeat": call})
    monkeypatch.setattr(heartbeat, "HEARTBEAT_DEFAULT_INTERVAL", heartbeat.HEARTBEAT_DEFAULT_INTERVAL)
    monkeypatch.setattr(connection, "FleetHttpClient", client)
    node_waits.keep_place(connection, waits.append)
    made: Any = connection.FleetHttpClient
    return SimpleNamespace(client=made(), answers=answers, waits=waits)


@pytest.mark.parametrize("answer", [500, 403, SimpleNamespace(success=False)])
def test_a_heartbeat_that_fails_is_sent_again(answer: Any, patient: Any) -> None:
    """With Flower's own, no other one would follow an answer such as 500; at this error it sends another."""
    patient.answers.append(answer)
    request = SimpleNamespace()
    with pytest.raises(httpx.TransportError):
        patient.client.SendNodeHeartbeat(request)
    assert request.heartbeat_interval == node_waits.HEARTBEAT
    assert patient.client.SendNodeHeartbeat(request).success
    patient.answers.append(401)  # at which Flower ends the node
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        patient.client.SendNodeHeartbeat(request)


def test_a_node_that_is_started_anew_waits_for_its_place_and_is_missed_soon(patient: Any) -> None:
    patient.answers.extend([412, 412])
    request = SimpleNamespace()
    assert patient.client.ActivateNode(request).success
    assert patient.waits == [node_waits.HELD] * 2
    least = importlib.import_module("flwr.common.constant").HEARTBEAT_MIN_INTERVAL
    assert request.heartbeat_interval == heartbeat.HEARTBEAT_DEFAULT_INTERVAL == least
    patient.answers.append(401)
    with pytest.raises(httpx.HTTPStatusError, match="401"):  # a stranger need not wait
        patient.client.ActivateNode(request)


def test_the_message_to_a_node_that_was_started_anew_counts_as_lost(grid: http_grid.HttpGrid) -> None:
    identify_process()
    active, clock, changed = {7: "10:00", 8: "10:00"}, Clock(), cast(Any, grid)
    changed.get_nodes = lambda: [SimpleNamespace(node_id=i, last_activated_at=at) for i, at in active.items()]
    changed.push_messages = lambda messages: [f"m{message.metadata.dst_node_id}" for message in messages]
    changed.pull_messages = lambda message_ids: []
    internals.notice_restarts(grid, every=2.0, clock=clock)
    ids = grid.push_messages([Message(RecordDict(), node_id, "train") for node_id in active])
    assert grid.pull_messages(ids) == []
    active[8] = "10:01"
    assert grid.pull_messages(ids) == []  # not looked again yet
    clock.now += 3.0
    (reply,) = grid.pull_messages(ids)
    assert (reply.metadata.reply_to_message_id, reply.has_error()) == ("m8", True)
    del active[7]  # not connected: Flower itself reports it
    clock.now += 3.0
    assert grid.pull_messages(["m7"]) == []


@pytest.fixture
def quickened(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that quickens Flower's module of a SuperNode, with these functions in it, for this test."""

    def quicken(**functions: Any) -> ModuleType:
        for name in ("time", "subprocess", "_pull_and_store_message"):
            monkeypatch.setattr(node, name, functions.get(name, getattr(node, name)))
        monkeypatch.setattr(runtime_handlers, "push_task_output", runtime_handlers.push_task_output)
        monkeypatch.setitem(pull_objects.__kwdefaults__, "initial_backoff", 1.0)
        node_waits.quicken_node(node, warm=True)
        return node

    return quicken


def test_the_superexec_is_ours_and_sees_one_pipe_alone(
    quickened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", popen := Mock())
    module = quickened()
    module.subprocess.Popen(["flower-superexec", "--insecure"])
    (ours,), options = popen.call_args
    assert [*ours[:3], *ours[4:]] == [sys.executable, "-P", str(node_waits.SUPEREXEC), "-1", "warm", "--insecure"]
    assert options == {"pass_fds": [int(ours[3])]}
    module.subprocess.Popen(["other"])
    assert popen.call_args == ((["other"],),)


def test_the_next_message_waits_for_the_state_of_the_last(
    quickened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's own handler, which ends the task first: its state is slow to keep the context."""
    monkeypatch.setattr(runtime_handlers, "context_from_proto", lambda context: context)
    ended, may, seen = threading.Event(), threading.Event(), list[str]()

    def keep(_series: int, _context: Any) -> None:
        ended.set()
        assert may.wait(20)
        seen.append("kept")

    state = Mock(set_run_series_context=keep, finish_task=Mock(return_value=True))
    module = quickened(_pull_and_store_message=lambda **_: seen.append("pulled") or 7)  # type: ignore[func-returns-value]
    module._pull_and_store_message()
    output = PushTaskOutputRequest(context=Context(run_id=1), sub_status="completed")
    given = (output, state, SimpleNamespace(run_id=1, task_id=1))
    threading.Thread(target=runtime_handlers.push_task_output, args=given, daemon=True).start()
    assert ended.wait(20)
    following = threading.Thread(target=module._pull_and_store_message, daemon=True)
    following.start()
    assert seen == ["pulled"]
    may.set()
    following.join(20)
    assert seen == ["pulled", "kept", "pulled"]
