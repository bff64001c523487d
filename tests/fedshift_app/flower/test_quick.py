"""Flower's fixed waits are replaced where they are the known ones, and nowhere else."""

import functools
import importlib
import itertools
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.app import Message, RecordDict
from flwr.proto.message_pb2 import Context
from flwr.proto.runtime_pb2 import PushTaskOutputRequest
from flwr.serverapp import Grid
from flwr.supercore import heartbeat
from flwr.supercore.exit import exit_handler
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
from flwr.superlink.grid import http_grid
from flwr.supernode import fleet_http_connection as connection
from flwr.supernode import start_client_internal as node
from flwr.supernode.runtime import run_clientapp
from flwr.supernode.servicer.runtime import runtime_handlers
from support import refusal_of

from fedshift.site.deploy import node_waits
from fedshift_app.flower import internals, polling
from fedshift_app.flower.backoff import Backoff
from fedshift_app.flower.internals import identify_process
from fedshift_core.errors import FedShiftError


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> http_grid.HttpGrid:
    """Return Flower's own grid, whose module is as it was after the test."""
    monkeypatch.setattr(http_grid, "time", time)
    monkeypatch.setattr(http_grid, "pull_objects", http_grid.pull_objects)
    return http_grid.HttpGrid(token="t", insecure=True)


def test_the_installed_flower_is_known() -> None:
    assert (
        polling.unknown(polling.NODE, polling.CONNECTION, polling.HANDLERS) == polling.unknown(polling.HTTP_GRID) == ""
    )


@pytest.mark.parametrize("module", [polling.NODE, polling.HTTP_GRID])
def test_another_version_or_shape_is_not(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("flwr.supercore.version.package_version", "1.43.0")
        assert polling.unknown(module) == "this is Flower 1.43.0, supported are 1.41.x and 1.42.x"
    with monkeypatch.context() as patch:
        patch.setattr(f"{module}.time", SimpleNamespace(sleep=time.sleep))
        assert polling.unknown(module) == f"{module} does not sleep with the module time"
    shapes = {place: (*parts, "time.sleep(4)") for place, parts in polling.SHAPES.items()}
    monkeypatch.setattr(polling, "SHAPES", shapes)
    assert polling.unknown(module).endswith("does not contain time.sleep(4)")


def test_replies_are_looked_for_sooner(grid: http_grid.HttpGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own loop, whose two looks would be three seconds apart."""
    slept: list[float] = []
    monkeypatch.setattr(polling, "Backoff", functools.partial(Backoff, sleep=slept.append))
    polling.quicken_grid(grid)
    replies = iter([[], [], [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id="a"))]])
    monkeypatch.setattr(grid, "push_messages", lambda messages: ["a"])
    monkeypatch.setattr(grid, "pull_messages", lambda ids: next(replies))
    assert len(list(grid.send_and_receive([]))) == 1
    assert slept == [polling.LEAST] * 2


def test_parts_that_are_not_there_yet_are_asked_for_again_soon(
    grid: http_grid.HttpGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's own loop, whose second look would be a second later."""
    monkeypatch.setattr(node, "pull_objects", node.pull_objects)
    polling.look_sooner_for_parts(node)
    polling.quicken_grid(grid)
    for module in (node, http_grid):
        looks: list[float] = []

        def look(_id: str, looks: list[float] = looks) -> bytes:
            looks.append(time.monotonic())
            if len(looks) < 3:
                raise ObjectUnavailableError("a")
            return b"part"

        assert module.pull_objects(["a"], look) == {"a": b"part"}
        waits = [after - before for before, after in itertools.pairwise(looks)]
        assert waits[0] >= 0.8 * polling.FIRST_LOOK_FOR_PARTS  # Flower's jitter is a fifth
        assert waits[1] >= 1.6 * polling.FIRST_LOOK_FOR_PARTS
        assert not polling.unknown(module.__name__) or module is http_grid  # whose time is ours already


def test_a_grid_of_another_flower_is_left_alone(
    grid: http_grid.HttpGrid, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("flwr.supercore.version.package_version", "1.43.0")
    polling.quicken_grid(grid)
    assert http_grid.time is time
    assert "send_and_receive" not in vars(grid)
    assert "as rarely as plain Flower does: this is Flower 1.43.0" in caplog.text


def test_other_grids_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Grid):
        """No grid of Flower's."""

    monkeypatch.setattr(Own, "__abstractmethods__", frozenset())
    own = Own()
    polling.quicken_grid(own)
    assert "send_and_receive" not in vars(own)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], str]:
    """Return a function that runs a SuperNode, which does what it is given, and returns the error."""

    def start(command: Callable[[], Any]) -> str:
        # Its package has a function of this name.
        monkeypatch.setattr(import_module("flwr.supernode.cli.flower_supernode"), "flower_supernode", command)
        return refusal_of(FedShiftError, node_waits.run_supernode, ["--insecure"], warm=True)

    for name in ("quicken_node", "keep_bundles", "keep_heartbeats", "keep_place"):
        monkeypatch.setattr(node_waits, name, lambda *given, **more: None)
    monkeypatch.setattr(node_waits.middlewares, "shorten", lambda: None)
    monkeypatch.setattr(node_waits.round_trips, "spare_node", lambda: None)
    monkeypatch.setattr(exit_handler, "registered_exit_handlers", [])
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(node_waits.signal, "signal", lambda *given: None)
    monkeypatch.setenv("PATH", os.environ["PATH"])
    return start


def test_a_node_of_another_flower_does_not_start(
    started: Callable[[Callable[[], Any]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could unpack a run's bundle and import it by another way than the one that is closed."""
    monkeypatch.setattr("flwr.supercore.version.package_version", "1.43.0")
    error = started(lambda: pytest.fail("started"))
    assert error.startswith("this Flower would run the code that a run brings: this is Flower 1.43.0")


@pytest.mark.parametrize(("module", "name"), [(runtime_handlers, "pull_task_input"), (run_clientapp, "run_clientapp")])
def test_nor_one_whose_parts_are_other_ones(
    module: ModuleType, name: str, started: Callable[[Callable[[], Any]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, lambda *given: None)
    error = started(lambda: pytest.fail("started"))
    assert error.startswith(f"this Flower would run the code that a run brings: {module.__name__}.{name} does not")


@pytest.mark.parametrize("raised", [None, ValueError("no start line")])
def test_a_node_that_cannot_go_on_ends(raised: Exception | None, started: Callable[[Callable[[], Any]], str]) -> None:
    """Flower's thread, which serves the node's own processes, would keep the process of a dead node alive."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait, daemon=True)

    def command() -> None:
        thread.start()
        exit_handler.add_exit_handler(over.set)
        if raised:
            raise raised

    error = started(command)
    thread.join(20)
    assert not thread.is_alive()
    assert error == (
        "the SuperNode cannot go on: ValueError: no start line"
        if raised
        else "the SuperNode has lost its SuperLink, for the reason above; start it again"
    )


def test_a_heartbeat_that_fails_is_sent_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With Flower's own sender, no other one would follow an answer such as 500."""
    monkeypatch.setattr(connection, "HeartbeatSender", heartbeat.HeartbeatSender)
    monkeypatch.setattr(heartbeat, "exponential", lambda **_given: itertools.repeat(0.01))
    node_waits.keep_heartbeats(connection)
    sent, again = list[int](), threading.Event()

    def send() -> bool:
        sent.append(1)
        if len(sent) == 1:
            raise RuntimeError("answer 500\nsee there")
        again.set()
        return True

    sender = connection.HeartbeatSender(send)
    sender.start()
    assert again.wait(20)
    sender.stop()
    assert "a heartbeat of this SuperNode has failed, it is sent again: answer 500" in caplog.text


def test_a_node_that_is_started_anew_waits_for_its_place_and_is_missed_soon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held, waits = [412, 412], list[float]()

    class Client:
        def ActivateNode(self, request: Any) -> str:
            status = held.pop(0) if held else 200
            answer = httpx.Response(status, request=httpx.Request("POST", "http://127.0.0.1"))
            answer.raise_for_status()
            return f"{request} is active"

    monkeypatch.setattr(connection, "HEARTBEAT_DEFAULT_INTERVAL", heartbeat.HEARTBEAT_DEFAULT_INTERVAL)
    monkeypatch.setattr(heartbeat, "HEARTBEAT_DEFAULT_INTERVAL", heartbeat.HEARTBEAT_DEFAULT_INTERVAL)
    monkeypatch.setattr(connection, "FleetHttpClient", Client)
    with caplog.at_level("INFO", "fedshift"):
        node_waits.keep_place(connection, waits.append)
        patient = connection.FleetHttpClient()  # type: ignore[call-arg]
        assert patient.ActivateNode("node") == "node is active"  # type: ignore[arg-type, comparison-overlap]
    assert waits == [node_waits.HELD] * 2
    assert caplog.text.count("the SuperLink does not let this node in") == 1
    least = importlib.import_module("flwr.common.constant").HEARTBEAT_MIN_INTERVAL
    assert connection.HEARTBEAT_DEFAULT_INTERVAL == heartbeat.HEARTBEAT_DEFAULT_INTERVAL == least
    held += [401]
    with pytest.raises(httpx.HTTPStatusError, match="401"):  # a stranger need not wait
        patient.ActivateNode("node")  # type: ignore[arg-type]


def test_the_message_to_a_node_that_was_started_anew_counts_as_lost(grid: http_grid.HttpGrid) -> None:
    identify_process()
    active, time_now = {7: "10:00", 8: "10:00"}, [0.0]
    changed: Any = grid
    changed.get_nodes = lambda: [SimpleNamespace(node_id=i, last_activated_at=at) for i, at in active.items()]
    changed.push_messages = lambda messages: [f"m{message.metadata.dst_node_id}" for message in messages]
    changed.pull_messages = lambda message_ids: []
    internals.notice_restarts(grid, every=2.0, clock=lambda: time_now[0])
    ids = grid.push_messages([Message(RecordDict(), node_id, "train") for node_id in active])
    assert grid.pull_messages(ids) == []
    active[8] = "10:01"
    assert grid.pull_messages(ids) == []  # not looked again yet
    time_now[0] = 3.0
    (reply,) = grid.pull_messages(ids)
    assert (reply.metadata.reply_to_message_id, reply.error.reason) == ("m8", "the node was started anew")
    del active[7]  # not connected: Flower itself reports it
    time_now[0] = 6.0
    assert grid.pull_messages(["m7"]) == []


@pytest.fixture
def quickened(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Return a function that quickens Flower's module of a SuperNode, with these functions in it, for this test."""

    def quicken(**functions: Any) -> ModuleType:
        for name in ("time", "subprocess", "_pull_and_store_message", "_push_messages"):
            monkeypatch.setattr(node, name, functions.get(name, getattr(node, name)))
        monkeypatch.setattr(runtime_handlers, "push_task_output", runtime_handlers.push_task_output)
        node_waits.quicken_node(node, warm=True)
        return node

    return quicken


def heard(bell: node_waits.Bell) -> bool:
    return bool(select.select([bell.ear], [], [], 0)[0]) and bool(os.read(bell.ear, 100))


def test_the_superexec_is_woken_once_a_message_is_there(
    quickened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before: its ClientApp would find none, and never answer."""
    bells: list[node_waits.Bell] = []
    ring = node_waits.Bell

    def bell() -> node_waits.Bell:
        bells.append(ring())
        return bells[0]

    monkeypatch.setattr(node_waits, "Bell", bell)
    result = iter([None, 7])

    def pull(**given: Any) -> int | None:
        assert not heard(bells[0])
        return next(result)

    module = quickened(_pull_and_store_message=pull)
    given = {"state": None, "confirm_message_received": print, "pull_object": print}
    assert module._pull_and_store_message(**given) is None
    assert not heard(bells[0])
    assert module._pull_and_store_message(**given) == 7
    assert heard(bells[0])


def test_the_next_message_brings_what_is_new_and_a_reply_waits_for_the_confirmation(
    quickened: Callable[..., Any],
) -> None:
    may, seen = threading.Event(), list[str]()

    def pull_object(run_id: int, name: str) -> bytes:
        seen.append(f"brought {name}")
        return b"."

    def confirm(run_id: int, name: str) -> None:
        assert may.wait(20)
        seen.append(f"confirmed {name}")

    def pull(*, message: str, parts: str, pull_object: Any, confirm_message_received: Any) -> int:
        for part in parts:
            pull_object(1, part)
        confirm_message_received(1, message)
        return 1

    def push(*, send: Any, state: Any) -> None:
        may.set()
        seen.append(send("reply", "tree", 0.5))

    module = quickened(_pull_and_store_message=pull, _push_messages=push)
    given = {"pull_object": pull_object, "confirm_message_received": confirm}
    state = SimpleNamespace(get_tasks=lambda statuses: [])
    module._pull_and_store_message(message="score", parts="wa", **given)
    assert seen == ["brought w", "brought a"]
    module._push_messages(send=lambda *parts: f"sent {parts}", state=state)
    module._pull_and_store_message(message="train", parts="wb", **given)
    module._push_messages(send=lambda *parts: "sent", state=state)
    assert seen[2:] == ["confirmed score", "sent ('reply', 'tree', 0.5)", "brought b", "confirmed train", "sent"]


def test_the_superexec_is_ours_and_sees_one_pipe_alone(
    quickened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **more: started.append((command, more)))
    module = quickened()
    module.subprocess.Popen(["flower-superexec", "--insecure"])
    module.subprocess.Popen(["other"])
    (ours, options), (other, nothing) = started
    assert ours[:3] == [sys.executable, "-P", str(node_waits.SUPEREXEC)]
    assert ours[4:] == ["-1", "warm", "--insecure"]
    assert options == {"pass_fds": [int(ours[3])]}
    assert (other, nothing) == (["other"], {})


def test_the_next_message_waits_for_the_state_of_the_last() -> None:
    """A ClientApp hands over its context after its reply: the next one must not start from the context of before."""
    clock = iter(range(100))
    slept: list[float] = []
    left = iter([["task"], ["task"], []])
    state = SimpleNamespace(get_tasks=lambda statuses: next(left))
    node_waits.wait_for_state(state, threading.Lock(), clock=lambda: next(clock), sleep=slept.append)
    assert len(slept) == 2


def test_a_state_that_is_being_handed_over_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own handler, which ends the task first: its state is slow to keep the context."""
    monkeypatch.setattr(runtime_handlers, "push_task_output", runtime_handlers.push_task_output)
    monkeypatch.setattr(runtime_handlers, "context_from_proto", lambda context: context)
    handover = node_waits.watch_handover(runtime_handlers)
    ended, may, seen = threading.Event(), threading.Event(), list[str]()

    def keep(_series: int, _context: Any) -> None:
        ended.set()
        assert may.wait(20)
        seen.append("kept")

    state = SimpleNamespace(
        finish_task=lambda **_given: True, get_run=lambda _run: SimpleNamespace(series_id=1),
        set_run_series_context=keep, get_tasks=lambda statuses: [],
    )  # fmt: skip
    output = PushTaskOutputRequest(context=Context(run_id=1), sub_status="completed")
    thread = threading.Thread(
        target=runtime_handlers.push_task_output,
        args=(output, state, SimpleNamespace(run_id=1, task_id=1)),
        daemon=True,
    )
    thread.start()
    assert ended.wait(20)

    def sleep(_seconds: float) -> None:
        may.set()
        thread.join(20)

    node_waits.wait_for_state(state, handover, sleep=sleep)
    assert seen == ["kept"]


def test_it_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    clock = iter(range(100))
    node_waits.wait_for_state(
        SimpleNamespace(get_tasks=lambda statuses: ["task"]), threading.Lock(), clock=lambda: next(clock),
        sleep=lambda seconds: None,
    )  # fmt: skip
    assert "a ClientApp has not ended 10 s after its reply" in caplog.text


def test_a_bell_that_nobody_hears_does_not_block_and_is_rung_again_after_a_second() -> None:
    now = [0.0]
    bell = node_waits.Bell(clock=lambda: now[0])
    bell.remind()
    assert not heard(bell)
    now[0] = 1.0
    bell.remind()
    assert heard(bell)
    for _ in range(100_000):
        bell.ring()
    assert heard(bell)
