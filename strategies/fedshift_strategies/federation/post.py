"""Messages that a round sends to nodes, and the replies that are answers to them.

What is the same for all is written once; long work goes first, so that no core waits at the end. Flower's simulation
gives its actors the messages by the order of nodes, not by that of sending (``vce_api.py`` of Flower 1.41); but it
looks for new messages ten times a second and queues what it finds. So the long work is sent first, and the rest once
that is queued, which Flower writes down as the time of delivery.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flwr.app import Array, ArrayRecord, Message, MessageType
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedshift_core.arrays import Arrays
from fedshift_core.wire.messages import RunHeader, WorkRequest
from fedshift_core.wire.records import encode_array
from fedshift_strategies.federation.context import Ask
from fedshift_strategies.federation.nodes import Node
from fedshift_strategies.federation.pending import Sent, check_whole, let_go_strays

if TYPE_CHECKING:  # it has one
    from fedshift_strategies.base import DomainStrategy

Options = Callable[[Node], Mapping[str, Any]]


#: Times the mean: where no node has so much work, the order hardly matters and nothing waits.
UNEVEN = 1.5
LOOK_SECONDS = 0.01
#: Above this nobody waits for Flower to queue the long work: the order changes no number.
GIVE_UP_SECONDS = 2.0


class Encoder:
    """Writes arrays for many messages: one that goes to several nodes as the same object is written once."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, int], tuple[NDArray[Any], Array]] = {}

    def record(self, arrays: Arrays) -> ArrayRecord:
        """Return named arrays as they travel.

        Raises:
            RecordError: If an array holds anything but booleans and numbers.
        """
        return ArrayRecord({name: self._write(name, array) for name, array in arrays.items()})

    def _write(self, name: str, array: NDArray[Any]) -> Array:
        # With the array itself: while it is held, no other can have its id.
        held = self._written.get((name, id(array)))
        if held is None:
            held = self._written[name, id(array)] = array, encode_array(name, array)
        return held[1]


def longest_first(work: Mapping[Node, int]) -> list[Node]:
    """Return nodes by their amount of work, most first; then by index."""
    return sorted(work, key=lambda node: (-work[node], node.index))


def in_waves(messages: Sequence[Message], work: Sequence[int]) -> Iterator[Message]:
    """Yield messages with more work than the mean, wait until Flower has queued them, and yield the others.

    Args:
        messages: Longest first.
        work: The amount of work behind each message, above 0.
    """
    mean = sum(work) / max(len(work), 1)
    long = sum(amount > mean for amount in work) if max(work, default=0) >= UNEVEN * mean else 0
    yield from messages[:long]
    until = time.monotonic() + GIVE_UP_SECONDS
    while not all(message.metadata.delivered_at for message in messages[:long]) and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
    yield from messages[long:]


class Post:
    """The messages of a strategy.

    Attributes:
        grid: Flower's, of the round that is going on.
        kind: Of what was sent last.
    """

    grid: Grid

    def __init__(self, strategy: "DomainStrategy[Any]") -> None:
        self._strategy, self._sent = strategy, Sent()
        self.kind: str = MessageType.TRAIN

    def write(
        self, kind: str, work: Mapping[Node, int], arrays: ArrayRecord, options: Options, records: Mapping[str, Arrays]
    ) -> list[Message]:
        """Return a message to each node, the longest work first.

        Args:
            kind: To train, or to evaluate.
            work: The nodes, each with how much it has to do.
            arrays: The shared weights.
            options: Returns what a node's record ``config`` has besides.
            records: Further arrays for all of them, by record.
        """
        self.kind, encoder = kind, Encoder()
        more = {name: encoder.record(arrays) for name, arrays in records.items()}
        messages = [self._message(kind, node, arrays, options(node), more, encoder) for node in longest_first(work)]
        self._sent = Sent(messages)
        return messages

    def in_order(self, messages: list[Message], work: Mapping[Node, int]) -> Iterable[Message]:
        """Return messages, longest first, so that Flower's simulation keeps to that."""
        queues = self._strategy.federation.engine.queues
        return in_waves(messages, sorted(work.values(), reverse=True)) if queues else messages

    def ask(
        self,
        weights: ArrayRecord,
        work: Mapping[Node, int],
        options: Mapping[str, Any],
        own: Mapping[Node, Mapping[str, Any]] | None = None,
    ) -> list[Message]:
        """Send nodes a question of a feature about weights, and return their answers."""
        strategy = self._strategy
        strategy.roster.listener.asked(strategy.server_round, list(work), training=False)
        messages = self.write(
            MessageType.EVALUATE, work, weights, lambda node: {**options, **(own or {}).get(node, {})}, {}
        )
        return self.answers(self.send(self.in_order(messages, work)))

    def query(self, questions: dict[Node, dict[str, Any]]) -> list[Message]:
        """Send each node its question of a feature, without weights, and return the answers."""
        fed, before, self.kind = self._strategy.federation, self.kind, MessageType.QUERY
        header = RunHeader(fed.engine.name, fed.run_json, self._strategy.memory.run_id)
        messages = [
            Message(header.question(self._strategy.server_round, node.index, asked), node.node_id, MessageType.QUERY)
            for node, asked in questions.items()
        ]
        self._sent = Sent(messages)
        answers = self.answers(self.send(messages))
        self.kind = before
        return answers

    def send(self, messages: Iterable[Message]) -> Iterable[Message]:
        """Send messages, and return what comes back in time."""
        return self.grid.send_and_receive(messages, timeout=self._strategy.federation.engine.node_timeout)

    def answers(self, replies: Iterable[Message]) -> list[Message]:
        """Return the answers to what was sent, one of each node; others are let go, with a line."""
        strategy, roster = self._strategy, self._strategy.roster
        answers, strays = self._sent.answers(replies)
        senders = [reply.metadata.src_node_id for reply in answers]
        roster.silence.record_answers(senders, self.kind)
        if self.kind != MessageType.QUERY:
            strategy.start_values.record_answers(answers)
            roster.listener.answered(senders)
        let_go_strays(strays, roster.nodes, strategy.server_round)
        if strategy.federation.engine.is_simulation:
            check_whole(answers, roster.nodes, strategy.server_round)
        return answers

    def _message(
        self,
        kind: str,
        node: Node,
        arrays: ArrayRecord,
        options: Mapping[str, Any],
        records: Mapping[str, ArrayRecord],
        encoder: Encoder,
    ) -> Message:
        strategy, fed = self._strategy, self._strategy.federation
        ask = Ask(strategy.server_round, kind == MessageType.TRAIN)
        digest, start = strategy.start_values.for_node(node.node_id)
        header = strategy.memory.header(node, fed.engine.name, fed.run_json, digest)
        knowledge, scalars = encoder.record(strategy.knowledge_for(node, ask)), strategy.tell(node, ask)
        request = WorkRequest(header, ask.server_round, node.index, arrays, knowledge, scalars, options, records, start)
        return Message(request.to_record(), node.node_id, kind)
