"""Messages that a round sends to nodes, and the replies that are answers to them."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, Message, MessageType
from flwr.serverapp import Grid

from fedshift_core.arrays import Arrays
from fedshift_core.wire.messages import RunHeader, WorkRequest
from fedshift_strategies.federation.context import Ask
from fedshift_strategies.federation.dispatch import Encoder, in_waves, longest_first
from fedshift_strategies.federation.nodes import Node
from fedshift_strategies.federation.pending import Sent, check_whole, let_go_strays

if TYPE_CHECKING:  # it has one
    from fedshift_strategies.base import DomainStrategy

Options = Callable[[Node], Mapping[str, Any]]


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
        roster.record_answers(senders, self.kind)
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
        header = strategy.memory.header(node, RunHeader(fed.engine.name, fed.run_json, start_digest=digest))
        knowledge, scalars = encoder.record(strategy.knowledge_for(node, ask)), strategy.tell(node, ask)
        request = WorkRequest(header, ask.server_round, node.index, arrays, knowledge, scalars, options, records, start)
        return Message(request.to_record(), node.node_id, kind)
