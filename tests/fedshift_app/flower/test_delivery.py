"""Flower's messages found in one look: each handed out once, to its node, in the order of the nodes; or left alone."""

import importlib.util
import threading
import time
from collections.abc import Iterator
from queue import Queue
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest
from flwr.app import Message, RecordDict
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.fleet.vce import vce_api
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState, RunRecord
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import InMemoryGrid

from fedshift_app.flower import quick_grid, sources
from fedshift_app.flower.internals import identify_process, watch_replies

NODES = 30


class Engine:
    """Flower's own store and grid, with nodes and without Ray."""

    def __init__(self) -> None:
        identify_process()
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
        self.state: Any = factory.state()
        run = Run.create_empty(1)
        run.federation_id, run.primary_task_id = NOOP_FEDERATION_ID, 1
        self.state.run_ids[1] = RunRecord(run=run)
        self.state.task_store[1] = Task(task_id=1, run_id=1)
        self.nodes = vce_api._register_nodes(NODES, factory)
        self.grid = InMemoryGrid(factory)
        self.grid.set_run(run)
        self.asked: list[tuple[int, str]] = []

    def message(self, node: int, kind: str = "train") -> Message:
        return Message(RecordDict(), node, kind)

    def reply(self, message: Message) -> Message:
        reply = Message(RecordDict(), reply_to=message)
        reply.metadata.__dict__["_message_id"] = str(uuid4())
        return reply

    def answer(self, queue: "Queue[Message]", stop: threading.Event) -> None:
        """Answer what is handed out, as a worker, but for the messages of the kind ``evaluate``."""
        while not stop.is_set():
            while not queue.empty():
                message = queue.get()
                self.asked.append((message.metadata.dst_node_id, message.metadata.message_id))
                if message.metadata.message_type != "evaluate":
                    self.state.store_message_res(self.reply(message))
            time.sleep(0.001)


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def running(engine: Engine) -> Iterator[Engine]:
    stop, queue = threading.Event(), Queue[Message]()
    threads = [
        threading.Thread(target=quick_grid.hand_out, args=(engine.state, queue, engine.nodes, stop)),
        threading.Thread(target=engine.answer, args=(queue, stop)),
    ]
    quick_grid.quicken(engine.grid)
    for thread in threads:
        thread.start()
    yield engine
    stop.set()
    for thread in threads:
        thread.join()


# --- which messages -------------------------------------------------------------------------------------------


def test_a_look_takes_the_oldest_message_of_each_node_once_in_their_order(engine: Engine) -> None:
    nodes = list(engine.nodes)
    sent = [engine.message(node) for node in (nodes[5], nodes[2], nodes[5], nodes[9])]
    first, second, third, fourth = engine.grid.push_messages(sent)
    taken = quick_grid.take(engine.state, engine.nodes)
    assert [message.metadata.message_id for message in taken] == [second, first, fourth]
    assert [message.metadata.dst_node_id for message in taken] == [nodes[2], nodes[5], nodes[9]]
    assert all(message.metadata.delivered_at for message in taken)
    assert [message.metadata.message_id for message in quick_grid.take(engine.state, engine.nodes)] == [third]
    assert quick_grid.take(engine.state, engine.nodes) == []
    for node in nodes:  # and Flower itself finds them handed out
        assert engine.state.get_message_ins(node, limit=None) == []


def test_it_takes_what_flower_would(engine: Engine) -> None:
    """Look by look the same messages as Flower's loop over the nodes, from a second store with the same messages."""
    other, wanted = Engine(), []
    pattern = [7, 3, 3, 28, 0, 7, 7, 12]
    for one in (engine, other):
        nodes = list(one.nodes)
        one.grid.push_messages([Message(RecordDict(), nodes[index], "train", ttl=50 + place)
                                for place, index in enumerate(pattern)])  # fmt: skip
    for _ in range(4):
        wanted.append([m.metadata.ttl for node in other.nodes for m in other.state.get_message_ins(node, limit=1)])
        assert [message.metadata.ttl for message in quick_grid.take(engine.state, engine.nodes)] == wanted[-1]
    assert wanted == [[54, 51, 50, 57, 53], [52, 55], [56], []]


def test_an_expired_message_and_another_nodes_are_not_taken(engine: Engine) -> None:
    node, elsewhere = list(engine.nodes)[:2]
    old, good = engine.message(node), engine.message(node)
    foreign = engine.message(elsewhere)
    ids = list(engine.grid.push_messages([old, good, foreign]))
    old.metadata.__dict__["_created_at"] -= 10 * old.metadata.ttl
    here = {node: 0}
    assert quick_grid.take(engine.state, here) == []
    assert set(engine.state.message_ins_store) == set(ids[1:])  # the expired one is out, as Flower does it
    assert [message.metadata.message_id for message in quick_grid.take(engine.state, here)] == [ids[1]]
    assert foreign.metadata.delivered_at == ""


def test_two_that_look_at_once_take_nothing_twice(engine: Engine) -> None:
    ids = set(engine.grid.push_messages([engine.message(node) for node in engine.nodes for _ in range(20)]))
    taken: list[str] = []

    def look() -> None:
        for _ in range(20):
            taken.extend(message.metadata.message_id for message in quick_grid.take(engine.state, engine.nodes))

    lookers = [threading.Thread(target=look) for _ in range(4)]
    for looker in lookers:
        looker.start()
    for looker in lookers:
        looker.join()
    assert (len(taken), set(taken)) == (len(ids), ids)


# --- the whole way --------------------------------------------------------------------------------------------


def test_every_node_answers_once_and_all_replies_come_back(running: Engine) -> None:
    heard: list[int] = []
    watch_replies(running.grid, heard.extend)
    for _ in range(2):
        running.asked.clear()
        heard.clear()
        replies = running.grid.send_and_receive([running.message(node) for node in running.nodes])
        assert sorted(reply.metadata.src_node_id for reply in replies) == sorted(running.nodes) == sorted(heard)
        assert {(r.metadata.src_node_id, r.metadata.reply_to_message_id) for r in replies} == set(running.asked)
        assert len(running.asked) == NODES
        assert running.state.num_message_ins() == running.state.num_message_res() == 0


def test_what_came_in_time_is_returned(running: Engine) -> None:
    first, second = list(running.nodes)[:2]
    sent = [running.message(first), running.message(second, "evaluate")]  # which is not answered
    replies = running.grid.send_and_receive(sent, timeout=0.5)
    assert [reply.metadata.src_node_id for reply in replies] == [first]
    assert running.grid.send_and_receive([running.message(first)], timeout=0) == []


def test_flowers_own_answer_for_a_node_that_is_gone_is_heard(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_grid, "WHOLE_LOOK_SECONDS", 0.0)
    quick_grid.quicken(engine.grid)
    node = next(iter(engine.nodes))
    engine.state.nodes[node].online_until = 0.0
    message = engine.message(node)
    message.metadata.__dict__["_created_at"] -= 5.0
    (reply,) = engine.grid.send_and_receive([message], timeout=5)
    assert reply.has_error()


# --- when it is put in ----------------------------------------------------------------------------------------


def unchanged(module: str) -> ModuleType:
    """Return a copy of a module as Flower has it; this process's own may be mended already, by a test before."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.loader is not None
    result = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(result)
    return result


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """Put Flower's own function in place, and what was there back after the test; return it."""
    own = unchanged(vce_api.__name__).add_messages_to_queue
    monkeypatch.setattr(vce_api, "add_messages_to_queue", own)
    monkeypatch.delenv(quick_grid.PLAIN_FLOWER, raising=False)
    caplog.set_level("INFO", "fedshift")
    return own


def test_it_is_put_in_once_where_flower_is_what_was_read(flower: Any, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        quick_grid.install()
        assert vce_api.add_messages_to_queue is quick_grid.hand_out
    assert caplog.messages == []


def changed(self: Any, node_id: int, limit: int | None, *, run_id: int | None = None) -> list[Message]:
    return []


@pytest.mark.parametrize("reason", ["asked", "shape", "gone"])
def test_another_flower_is_left_alone_and_this_is_said(
    reason: str, flower: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if reason == "asked":
        monkeypatch.setenv(quick_grid.PLAIN_FLOWER, "1")
    elif reason == "shape":
        monkeypatch.setattr(InMemoryLinkState, "get_message_ins", changed)
    else:
        monkeypatch.delattr(InMemoryLinkState, "get_message_ins")
    quick_grid.install()
    quick_grid.quicken(engine.grid)
    assert vce_api.add_messages_to_queue is flower
    assert "send_and_receive" not in vars(engine.grid)
    assert len(caplog.messages) == (0 if reason == "asked" else 2)
    assert all(f"{sources.STORE}.get_message_ins of Flower" in line for line in caplog.messages)
