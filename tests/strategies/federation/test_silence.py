"""A node that does not answer costs one wait, then none: it is asked in the background, and taken back."""

from collections.abc import Iterable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from support import federation

from fedshift_app.flower.internals import identify_process
from fedshift_core.errors import FederationError
from fedshift_core.params import Params
from fedshift_core.wire.records import encode
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.federation import silence
from fedshift_strategies.federation.roster import Listener
from fedshift_strategies.federation.silence import Silence

QUERY, TRAIN, EVALUATE = MessageType.QUERY, MessageType.TRAIN, MessageType.EVALUATE


class QueueGrid:
    """Nodes behind a queue; who is ``deaf`` to a type of message leaves it there, and lets who waits for it wait."""

    def __init__(self, nodes: int, deaf: dict[int, set[str]]) -> None:
        identify_process()
        self.ids = [100 + place for place in range(nodes)]
        self.deaf = deaf
        self.waited: list[tuple[str, float | None]] = []
        self.sent: list[tuple[str, int]] = []
        self._queue: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        return list(self.ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        ids = self.push_messages(messages)
        replies = self.pull_messages(ids)
        requests = [self._queue.pop(message_id) for message_id in ids]
        if len(replies) < len(requests):
            self.waited.append((requests[0].metadata.message_type, timeout))
        return replies

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            ids.append(f"m{len(self.sent)}")
            vars(message.metadata)["_message_id"] = ids[-1]
            self._queue[ids[-1]] = message
            self.sent.append((message.metadata.message_type, message.metadata.dst_node_id))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        asked = [(message, message.metadata) for message in map(self._queue.__getitem__, message_ids)]
        heard = [message for message, about in asked if about.message_type not in self.deaf.get(about.dst_node_id, ())]
        return [Message(_answer(message), reply_to=message) for message in heard]


def _answer(message: Message) -> RecordDict:
    kind, place = message.metadata.message_type, message.metadata.dst_node_id - 100
    if kind == EVALUATE:
        return RecordDict({"metrics": MetricRecord({"correct/a": 1, "count/a": 1, "loss-sum/a": 0.5})})
    if kind == TRAIN:
        metrics = MetricRecord({"num-examples": 10})
        return RecordDict({"arrays": message.content["arrays"], "knowledge": ArrayRecord(), "metrics": metrics})
    numbers = {"class-counts": [10, 0], "num-test": 1, "shared-test": 0, "partition-id": place, "num-partitions": -1}
    return RecordDict({"config": ConfigRecord({"domain": "a"}), "metrics": MetricRecord(numbers)})


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Server:
    """A strategy of a deployment, and its rounds."""

    def __init__(self, nodes: int = 3, deaf: dict[int, set[str]] | None = None, **more: Any) -> None:
        self.grid, self.clock, self.listener = QueueGrid(nodes, deaf or {}), Time(), Mock(Listener)
        evaluate = federation().config.evaluate.model_copy(update={"figures": False})
        given = {"engine": "deployment", "run_json": "", "num_classes": 2, "min_nodes": 2, "node_timeout": 0.01}
        fed = federation(**{**given, "evaluate": evaluate, **more})
        self.results: list[Any] = []
        self.strategy = DomainStrategy(fed, Params(), lambda result, weights: self.results.append(result))
        self.strategy.roster.silence = Silence(self.clock, self.clock)
        self.strategy.roster.listener = self.listener
        self.weights = encode({"w": np.ones(3, np.float32)})
        self.strategy.gather(self.grid)  # type: ignore[arg-type]

    def silent(self) -> list[int]:
        """Return who is said to be silent."""
        return list(self.listener.silent.call_args.args[0])

    def round(self) -> list[int]:
        """Run a round and return the nodes whose weights were averaged."""
        number, grid = len(self.results) + 1, self.grid
        for configure, aggregate in (
            (self.strategy.configure_train, self.strategy.aggregate_train),
            (self.strategy.configure_evaluate, self.strategy.aggregate_evaluate),
        ):
            self.clock.now += 2.0
            requested = configure(number, self.weights, ConfigRecord(), grid)  # type: ignore[arg-type]
            aggregate(number, grid.send_and_receive(requested, timeout=3600))
        return list(self.results[-1].nodes)


@pytest.mark.parametrize("kinds", [{TRAIN, QUERY, EVALUATE}, {EVALUATE, QUERY}])
def test_a_node_that_falls_silent_costs_one_wait_and_comes_back(kinds: set[str]) -> None:
    server = Server()
    assert server.round() == [0, 1, 2]
    assert [kind for kind, _ in server.grid.sent] == [QUERY] * 3 + [TRAIN] * 3 + [EVALUATE] * 3  # and nothing else
    server.grid.deaf[101] = kinds
    server.round()
    assert server.grid.waited == [(TRAIN if TRAIN in kinds else EVALUATE, 3600)]
    for _ in range(5):
        assert server.round() == [0, 2]
    assert len(server.grid.waited) == 1  # in no phase of any later round
    assert server.silent() == [101]
    server.grid.deaf = {}
    server.round()  # it has answered what it was asked in the background
    assert server.round() == [0, 1, 2]
    assert server.silent() == []


def test_a_node_that_answers_questions_and_no_work_rests_for_ever_longer() -> None:
    server = Server()
    server.grid.deaf[101] = {TRAIN}
    taken_part = []
    for server_round in range(1, 21):
        before = len(server.grid.waited)
        server.round()
        if len(server.grid.waited) > before:
            taken_part.append(server_round)
    assert taken_part == [1, 2, 4, 8, 16]
    server.grid.deaf = {}
    while server.round() != [0, 1, 2]:
        assert len(server.results) < 40
    server.grid.deaf[101] = {TRAIN}  # what was before is forgotten
    before = len(server.grid.waited)
    server.round()
    server.round()
    assert len(server.grid.waited) == before + 2


def test_where_nobody_answers_the_run_ends_with_that() -> None:
    server = Server(nodes=2)
    server.round()
    server.grid.deaf = {100: {TRAIN, QUERY}, 101: {TRAIN, QUERY}}
    for words in ("no node delivered a usable result", "none of 2 connected nodes answered"):
        with pytest.raises(FederationError, match=words):
            server.round()


def question(node_id: int) -> Message:
    return Message(RecordDict(), node_id, QUERY)


def test_who_is_not_connected_is_not_asked_and_the_superlinks_word_is_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, grid = Time(), QueueGrid(1, {})
    quiet = Silence(clock, clock)
    quiet.miss(100, TRAIN)
    quiet.look(grid, [], question)  # type: ignore[arg-type]
    assert grid.sent == []
    clock.now += silence.LOOK_SECONDS
    quiet.look(grid, [100], question)  # type: ignore[arg-type]

    def unavailable(ids: Iterable[str]) -> list[Message]:
        (message_id,) = ids
        reply = Message(Error(code=3, reason="Node Unavailable"), reply_to=grid._queue[message_id])
        vars(reply.metadata)["_src_node_id"] = 1
        return [reply]

    monkeypatch.setattr(grid, "pull_messages", unavailable)
    clock.now += silence.LOOK_SECONDS
    assert quiet.look(grid, [100], question) == []  # type: ignore[arg-type]
    assert quiet.back() == []
    assert quiet._silent[100].pending == []
