"""What every strategy does: choose nodes, send, check, average, evaluate by domain; by itself it is FedAvg.

FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, https://arxiv.org/abs/1602.05629, algorithm 1.

A method subclasses :class:`DomainStrategy` and overrides ``weights`` (how node weights are chosen),
``check_knowledge`` and ``merge_knowledge`` (what the nodes contribute besides weights), or
``knowledge_for`` (what a node is sent).
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

import fedshift_records
from datasets.errors import FederationError
from datasets.seeding import generator
from fedshift_records import RecordError, encode
from fedshift_wire import (
    ARRAYS,
    CONFIG,
    DOMAINS,
    DRAWN,
    ENGINE,
    KNOWLEDGE,
    LOCAL,
    LOCAL_DOMAINS,
    METRICS,
    NODE_INDEX,
    RUN,
    SERVER_ROUND,
    STARTS,
    STOPS,
    VALIDATION,
    Params,
)  # fmt: skip
from strategies import clock
from strategies.averaging import Arrays, RunningAverage, shares
from strategies.clock import Clock
from strategies.evaluation import ClientScores, Evaluation, Part, Questions, local_accuracy, own_accuracy
from strategies.limits import Refused, check_contribution, check_numbers, training_numbers
from strategies.memory import NodeMemory
from strategies.roster import Node, Roster
from strategies.schedule import EvaluateConfig
from strategies.sending import in_waves, longest_first

log = logging.getLogger("fedshift")


@dataclass(frozen=True)
class Federation:
    """What a strategy must know of the run.

    Attributes:
        domains: The domains to evaluate, in their order.
        num_classes: C.
        feature_dim: D.
        seed: The run's seed.
        participation: Share of the nodes that train in a round, above 0, at most 1.
        personal: Nodes keep parts of the model to themselves, so each scores its own.
        min_nodes: Nodes that must be there before each round.
        node_timeout: Seconds to wait for nodes and for their answer to the first question.
        engine: ``simulation`` or ``deployment``.
        run_json: The resolved configuration, for the nodes.
        rounds: Rounds of the run.
        evaluate: Which of them are scored.
        validation: Nodes keep a validation part, on which the global model is scored as well.
        own_tests: Each node has a test set of its own for every domain, so all answer and their parts add up.
        profile: Whether to measure where the time of each round goes.
        eval_batch: Images per batch where nodes score test images.
        scores_images_alone: A test set may be divided: the score of an image depends on no other image.
        queues: Messages wait in Flower's simulation for a free actor, so that their order matters.
        max_value: The largest absolute value of a floating-point number that a node may send.
    """

    domains: tuple[str, ...]
    num_classes: int
    feature_dim: int
    seed: int
    participation: float
    personal: bool
    min_nodes: int
    node_timeout: float
    engine: str
    run_json: str
    rounds: int = 1
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    validation: bool = False
    own_tests: bool = False
    profile: bool = False
    eval_batch: int = 64
    scores_images_alone: bool = True
    queues: bool = False
    max_value: float = 1e6


@dataclass(frozen=True)
class Update:
    """A node's usable reply after local training."""

    node: Node
    record: ArrayRecord
    knowledge: Arrays
    num_examples: int
    metrics: dict[str, float]

    def arrays(self) -> Arrays:
        """Return the shared weights: read-only views of the record's bytes."""
        return self._arrays

    @cached_property
    def _arrays(self) -> Arrays:
        return decode(self.record)


@dataclass
class RoundResult:
    """One full round, as written to ``metrics.jsonl``.

    Attributes:
        accuracy: Top-1 accuracy in percent by domain; None where no node could tell; empty in a round
            in which the global model was not scored.
        test_loss: Mean cross-entropy by domain.
        evaluated_share: Share of the test images behind both; 1 for all.
        losses: Training loss and its named terms, averaged over nodes by number of examples.
        nodes: Indices of the nodes whose weights were averaged.
        left_out: Why a node was left out, one line each.
        bytes_down: Array bytes sent for training (weights and knowledge); evaluation is not counted.
        bytes_up: Array bytes received for training.
        validation: As ``accuracy``, on the nodes' validation parts; empty where they have none.
        clients: What the nodes' own models scored, in a round that asks for it.
        others: Accuracy as ``accuracy``, by the name of another way to score that the method offers.
        profile: Where the time went (``strategies.clock``), in a run that measures it.
        started_anew: Which nodes had lost what they kept to themselves, one line each.
    """

    server_round: int
    accuracy: dict[str, float | None] = field(default_factory=dict)
    test_loss: dict[str, float | None] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    nodes: list[int] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    validation: dict[str, float | None] = field(default_factory=dict)
    clients: ClientScores | None = None
    others: dict[str, dict[str, float | None]] = field(default_factory=dict)
    profile: dict[str, Any] = field(default_factory=dict)
    evaluated_share: float = 1.0
    started_anew: list[str] = field(default_factory=list)


Observer = Callable[[RoundResult, ArrayRecord, Arrays], None]


class DomainStrategy(FedAvg):
    """FedAvg over nodes with domains. Weights are averaged by number of training images."""

    params_model: ClassVar[type[Params]] = Params

    def __init__(self, federation: Federation, params: Params, observer: Observer) -> None:
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=federation.min_nodes)
        self.federation = federation
        self.params = params
        self.knowledge: Arrays = {}  # what the method shares besides weights; nothing else outlives a round
        self.memory = NodeMemory()
        self.completed = 0  # full rounds of the run before this process; Flower counts from 1 after them
        self.roster = Roster(
            federation.domains, federation.engine, federation.run_json, federation.num_classes
        )  # fmt: skip
        self._observer = observer
        self._result = RoundResult(0)
        self._asked: dict[int, Node] = {}
        self._global = ArrayRecord()
        self._evaluation: Evaluation | None = None
        self._clock = Clock(on=federation.profile, shared_processes=federation.engine == "simulation")

    # --- hooks of a method -------------------------------------------------------------------------

    @classmethod
    def check_run(cls, params: Params, rounds: int) -> None:
        """Raise ``ConfigError`` if the method cannot run so; called before anything starts."""

    def scores_round(self, server_round: int) -> bool:
        """Tell whether models can be scored at all after this round."""
        return True

    def weights(self, updates: list[Update]) -> list[float]:
        """Return one weight per update, summing to 1; by default the share of training images."""
        return shares([update.num_examples for update in updates])

    def knowledge_for(self, node: Node) -> Arrays:
        """Return what this node is sent besides weights; by default the same for all."""
        return self.knowledge

    def check_knowledge(self, knowledge: Arrays) -> None:
        """Raise :class:`Refused` if a node's contribution must not be used; by default it has to be empty."""
        if knowledge:
            raise Refused(f"unexpected knowledge {', '.join(sorted(knowledge))}")

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Turn the nodes' contributions, in the order of their index, into ``self.knowledge``."""

    # --- a round -----------------------------------------------------------------------------------

    def gather(self, grid: Grid) -> None:
        """Wait for the nodes and ask each what it is, before the first round.

        Raises:
            FederationError: If too few come, or one of them cannot take part.
        """
        self.roster.gather(grid, self.federation.min_nodes, self.federation.node_timeout)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the nodes of the round and write a message to each."""
        server_round += self.completed
        self._started = time.perf_counter()
        self._clock.start()
        self._result = RoundResult(server_round)
        self._grid, self._global = grid, arrays
        try:
            present = self.roster.wait_for(grid, self.federation.min_nodes, self.federation.node_timeout)
        except FederationError as error:
            raise FederationError(f"round {server_round}: {error}") from None
        nodes = self._sample(server_round, present)
        self._asked = {node.node_id: node for node in nodes}
        self.roster.listener.asked(server_round, nodes, training=True)
        work = {node: node.num_examples for node in nodes}  # times the local epochs, the same for all
        messages = [
            self._message(MessageType.TRAIN, node, arrays, server_round, self._local_domains(node, server_round))
            for node in longest_first(work)
        ]
        self._result.bytes_down = sum(_num_bytes(message.content) for message in messages)
        self._clock.lap(clock.MESSAGES)
        return self._in_order(messages, work)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the usable replies in the order of the nodes and merge their knowledge.

        The weights are taken out of the replies and let go as they are averaged: Flower keeps its list of
        replies until those of the next round are all there.

        Raises:
            FederationError: If no reply can be used.
        """
        server_round += self.completed
        replies = self._heard(replies)
        self._clock.lap(clock.TRAINING)
        updates, problems = self._sift(replies)
        for node, reason in problems:
            self._leave_out(node, reason)
        if not updates:
            raise FederationError(f"round {server_round}: no node delivered a usable result: {_by_reason(problems)}")
        weights = self.weights(updates)
        self.merge_knowledge(updates)
        self._result.nodes = [update.node.index for update in updates]
        self._result.losses = _mean_losses(updates)
        if self._scores_clients(server_round):
            self._result.clients = self._client_scores(updates, server_round)
        self._global = _average(updates, weights)
        self._clock.lap(clock.AVERAGING)
        return self._global, MetricRecord(dict(self._result.losses))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask, for each domain, the nodes that can tell its accuracy; nobody in a round that is not scored."""
        server_round += self.completed
        fed = self.federation
        self._evaluation = None
        if not fed.evaluate.scores_global(server_round, fed.rounds) or not self.scores_round(server_round):
            return []
        nodes = self.roster.online(grid, fed.node_timeout)
        self._evaluation = Evaluation(
            fed.domains, nodes, personal=fed.personal, own_tests=fed.own_tests, validation=fed.validation,
            batch=fed.eval_batch, divisible=fed.scores_images_alone, share=fed.evaluate.share(server_round, fed.rounds),
        )  # fmt: skip
        return self._questions(self._evaluation, self._evaluation.first(), server_round)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Group correct and count by domain; a node that fails is replaced by the next of its domain."""
        server_round += self.completed
        if self._evaluation is not None:
            self._score(self._evaluation, replies, server_round)
            self._clock.lap(clock.EVALUATION)
        self._result.profile = self._clock.report()
        self._result.seconds = time.perf_counter() - self._started
        self._observer(self._result, self._global, self.knowledge)
        told = {domain: value for domain, value in self._result.accuracy.items() if value is not None}
        return MetricRecord({f"accuracy/{domain}": value for domain, value in told.items()})

    # --- parts of a round --------------------------------------------------------------------------

    def _sample(self, server_round: int, nodes: list[Node]) -> list[Node]:
        """Choose which nodes train, by index, from (seed, round)."""
        number = max(1, round(self.federation.participation * len(nodes)))
        rng = generator(self.federation.seed, "participation", server_round)
        chosen = rng.permutation(len(nodes))[:number]
        return [nodes[i] for i in sorted(chosen)]

    def _message(
        self,
        kind: str,
        node: Node,
        arrays: ArrayRecord,
        server_round: int,
        asked: Mapping[str, list[str] | list[int] | bool],
    ) -> Message:
        config = ConfigRecord({
            SERVER_ROUND: server_round, NODE_INDEX: node.index,
            ENGINE: self.federation.engine, RUN: self.federation.run_json, **self.memory.told(node), **asked,
        })  # fmt: skip
        content = RecordDict({ARRAYS: arrays, KNOWLEDGE: encode(self.knowledge_for(node)), CONFIG: config})
        return Message(content, node.node_id, kind)

    def _in_order(self, messages: list[Message], work: Mapping[Node, int]) -> Iterable[Message]:
        """Return messages, longest first, so that Flower's simulation keeps to that."""
        return in_waves(messages, sorted(work.values(), reverse=True)) if self.federation.queues else messages

    def _questions(self, evaluation: Evaluation, parts_of: Questions, server_round: int) -> Iterable[Message]:
        self.roster.listener.asked(server_round, list(parts_of), training=False)
        more = {VALIDATION: True} if evaluation.validating else {}
        work = {node: sum(len(part) for part in parts) for node, parts in parts_of.items()}
        messages = [
            self._message(MessageType.EVALUATE, node, self._global, server_round, _asked_of(parts_of[node]) | more)
            for node in longest_first(work)
        ]
        return self._in_order(messages, work)

    def _score(self, evaluation: Evaluation, replies: Iterable[Message], server_round: int) -> None:
        """Write the scores of the global model into the round's result, asking again where a node failed."""
        while True:
            for node, problem in evaluation.read(self._heard(replies)):
                self._leave_out(node, f"could not evaluate: {problem}")
            again = evaluation.replacements()
            if not again:
                break
            replies = self._grid.send_and_receive(
                self._questions(evaluation, again, server_round), timeout=self.federation.node_timeout
            )
        tally = evaluation.tally()
        self._result.accuracy, self._result.test_loss = tally.accuracy(), tally.loss()
        self._result.others = tally.others()
        self._result.evaluated_share = evaluation.share
        if self.federation.validation:
            self._result.validation = evaluation.validation.accuracy()

    def _scores_clients(self, server_round: int) -> bool:
        asked = self.federation.evaluate.scores_clients(server_round, self.federation.rounds)
        return asked and self.scores_round(server_round)

    def _local_domains(self, node: Node, server_round: int) -> dict[str, list[str]]:
        """Return on which domains a node is to score its own model this round: all whose test images it sees."""
        if not self._scores_clients(server_round):
            return {}
        own = [node.domain] if node.num_test else []
        return {LOCAL_DOMAINS: list(self.federation.domains) if node.shared_test else own}

    def _client_scores(self, updates: list[Update], server_round: int) -> ClientScores:
        fed = self.federation
        accuracy: dict[int, dict[str, float]] = {}
        own: dict[int, float] = {}
        for update in updates:
            domains = self._local_domains(update.node, server_round)[LOCAL_DOMAINS]
            try:
                part = own_accuracy(update.metrics)
                accuracy[update.node.index] = local_accuracy(update.metrics, domains)
                own |= {} if part is None else {update.node.index: part}
            except Refused as refused:
                self._leave_out(update.node, f"could not score its own model: {refused}")
        # No model was scored on what was drawn for another node.
        nodes = (replace(node, shared_test=node.shared_test and not fed.own_tests) for node in self.roster.nodes)
        return ClientScores(tuple(nodes), accuracy, own)

    def _sift(self, replies: Iterable[Message]) -> tuple[list[Update], list[tuple[Node, str]]]:
        """Return the replies that may be averaged, and why the others may not; both by node index."""
        waiting = dict(self._asked)
        updates, problems = [], []
        for reply in replies:
            node = waiting.pop(reply.metadata.src_node_id, None)
            if node is None:
                continue
            try:
                updates.append(self._read(node, reply))
            except Refused as refused:
                problems.append((node, str(refused)))
        problems += [(node, "no answer in time") for node in waiting.values()]
        updates.sort(key=lambda update: update.node.index)
        return updates, sorted(problems, key=lambda problem: problem[0].index)

    def _read(self, node: Node, reply: Message) -> Update:
        if reply.has_error():
            raise Refused(reply.error.reason)
        record, knowledge = (_array_record(reply.content, name) for name in (ARRAYS, KNOWLEDGE))
        metrics = reply.content.metric_records.get(METRICS)
        if record is None or knowledge is None:
            raise Refused(f"the reply lacks the record {ARRAYS!r} or {KNOWLEDGE!r}")
        if metrics is None:
            raise Refused(f"the reply lacks the record {METRICS!r}")
        num_examples, named = training_numbers(metrics, node.num_examples)
        contributed = decode(knowledge)
        update = Update(node, record, contributed, num_examples, named)
        _check_like(update, self._global, self.federation.max_value)
        self.check_knowledge(contributed)
        check_contribution(contributed, node.class_counts, self.federation.max_value)
        self._result.bytes_up += _num_bytes(reply.content)
        del reply.content[ARRAYS]
        return update

    def _heard(self, replies: Iterable[Message]) -> list[Message]:
        """Return the replies, after taking from them what the nodes say of their memory and their time."""
        replies = list(replies)
        self.roster.listener.answered([reply.metadata.src_node_id for reply in replies])
        nodes = {node.node_id: node for node in self.roster.nodes}
        for reply in replies:
            metrics = None if reply.has_error() else reply.content.get(METRICS)
            node = nodes.get(reply.metadata.src_node_id)
            if not isinstance(metrics, MetricRecord) or node is None:
                continue
            if problem := self.memory.hear(node, self._result.server_round, metrics):
                self._result.started_anew.append(problem)
            if self.federation.profile:
                self._clock.hear(node.index, metrics)
        return replies

    def _leave_out(self, node: Node, reason: str) -> None:
        number = self._result.server_round
        told = {"event": "left_out", "round": number, "node": node.index, "domain": node.domain}
        log.warning("round %d: %s left out: %s", number, node, reason, extra=told)
        self.roster.listener.left_out(number, node, reason)
        self._result.left_out.append(f"{node}: {reason}")


def decode(record: ArrayRecord) -> Arrays:
    """Return the arrays of a record by name: read-only views of its bytes.

    Raises:
        Refused: If one is not what it claims to be.
    """
    try:
        return fedshift_records.decode(record)
    except RecordError as error:
        raise Refused(str(error)) from None


def _average(updates: list[Update], weights: list[float]) -> ArrayRecord:
    """Return the weighted average of the updates, in their order; the list is emptied on the way."""
    if len(weights) != len(updates):
        raise ValueError(f"{len(weights)} weights for {len(updates)} updates")
    average = RunningAverage()
    for weight in weights:
        average.add(updates.pop(0).arrays(), weight)
    return average.record()


def _asked_of(parts: list[Part]) -> dict[str, list[str] | list[int] | bool]:
    """Return the parts that a node is to score, as it is told of them."""
    return {
        DOMAINS: [part.domain for part in parts],
        DRAWN: [part.drawn for part in parts],
        STARTS: [part.start for part in parts],
        STOPS: [part.stop for part in parts],
    }


def _by_reason(problems: list[tuple[Node, str]]) -> str:
    """Return the problems as one text, nodes with the same problem together."""
    nodes: dict[str, list[str]] = {}
    for node, reason in problems:
        nodes.setdefault(reason, []).append(str(node))
    return "; ".join(f"{', '.join(who)}: {reason}" for reason, who in nodes.items())


def _check_like(update: Update, model: ArrayRecord, max_value: float) -> None:
    """Refuse weights whose names, shapes, types differ from the model's, or that are not finite or too large."""
    if list(update.record) != list(model):
        strange = sorted(set(update.record) ^ set(model)) or ["another order"]
        raise Refused(f"weights do not match the model: {', '.join(strange[:3])}")
    arrays = update.arrays()
    for name, wanted in model.items():
        array, told = arrays[name], update.record[name]  # which agree
        if array.shape != tuple(wanted.shape) or told.dtype != wanted.dtype:
            raise Refused(
                f"{name} has shape {array.shape} and type {array.dtype}, "
                f"expected {tuple(wanted.shape)} and {wanted.dtype}"
            )
        check_numbers(name, array, max_value)


def _mean_losses(updates: list[Update]) -> dict[str, float]:
    """Average each loss over the nodes that report it, by number of examples."""
    told = {name for update in updates for name in update.metrics}
    names = sorted(name for name in told if not name.startswith(LOCAL))
    means = {}
    for name in names:
        having = [update for update in updates if name in update.metrics]
        share = shares([update.num_examples for update in having])
        means[name] = float(sum(s * u.metrics[name] for s, u in zip(share, having, strict=True)))
    return means


def _num_bytes(content: RecordDict) -> int:
    records = (_array_record(content, name) for name in (ARRAYS, KNOWLEDGE))
    return sum(len(array.data) for record in records if record is not None for array in record.values())


def _array_record(content: RecordDict, name: str) -> ArrayRecord | None:
    # Not by `array_records`: what that returns is a cycle, which holds all records until Python looks for cycles.
    record = content.get(name)
    return record if isinstance(record, ArrayRecord) else None
