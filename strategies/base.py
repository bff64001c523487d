"""What every strategy does: choose nodes, send, check, average, evaluate by domain; by itself it is FedAvg.

FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, https://arxiv.org/abs/1602.05629, algorithm 1.

A method subclasses :class:`DomainStrategy` and overrides a few hooks: ``start_run`` (what must be there before round
1), ``weights`` (how nodes weigh), ``merge`` (how updates become the next weights), ``contributes`` and
``merge_knowledge`` (what nodes contribute besides weights), ``knowledge_for`` and ``tell`` (what a node is sent).
What must outlive a round is in ``knowledge`` (may be sent) or ``state`` (never is).
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedshift_core.arrays import Arrays
from fedshift_core.errors import FederationError
from fedshift_core.params import P, Parametrised
from fedshift_core.wire.names import (
    ARRAYS,
    AVERAGED,
    BN_IMAGES,
    BN_WAYS,
    CONFIG,
    ENGINE,
    FIGURES,
    KNOWLEDGE,
    LOCAL_DOMAINS,
    METRICS,
    NODE_INDEX,
    RETAKEN,
    RUN,
    SERVER_ROUND,
    STATISTICS,
    TOLD,
    VALIDATION,
)  # fmt: skip
from strategies import ga
from strategies.contributions import Declaration, check_contribution
from strategies.federation import (
    announced,
    checks,
    clock,
    own_models,
    robust,
    server_optimizer,
    statistics,
    untrained,
)
from strategies.federation.averaging import shares
from strategies.federation.clock import Clock
from strategies.federation.context import Ask, Federation, RoundResult
from strategies.federation.dispatch import Encoder, in_waves, longest_first
from strategies.federation.evaluation import (
    Evaluation,
    Questions,
    asked_of,
    tests_of,
)
from strategies.federation.memory import NodeMemory
from strategies.federation.one_time_payload import Start
from strategies.federation.pending import Sent, check_whole, let_go_strays
from strategies.federation.recovery import Blame, Point, Recovery, is_finite
from strategies.federation.roster import Node, Roster
from strategies.federation.update_norms import SentWeights
from strategies.federation.updates import (
    Update,
    average,
    by_reason,
    decode,
    mean_losses,
    num_bytes,
    read_update,
    sift,
)
from strategies.weighting import by_rule, check_weights

log = logging.getLogger("fedshift")

Observer = Callable[[RoundResult, ArrayRecord], None]
Scalars = Mapping[str, int | float | str]


class DomainStrategy(FedAvg, Parametrised[P]):
    """FedAvg over nodes with domains. Weights are averaged by number of training images.

    Attributes:
        knowledge: What the method shares besides weights; saved after each round, sent as ``knowledge_for`` says.
        state: What only the server keeps; saved after each round, never sent.
        moments: What the run's rules of averaging and its server optimiser keep; as ``state``.
        start_values: What nodes begin from beside the shared weights; sent to each once.
        last_nodes: Indices of the nodes whose updates were used in the last round, in their order.
    """

    #: What nodes contribute besides weights, for all settings of the method; :meth:`expected` says what in this run.
    contributes: ClassVar[Declaration] = {}
    #: Names of what :meth:`knowledge_for` and :meth:`tell` give nodes, ``*`` for any letters; nodes refuse others.
    #: None: it does not say (:func:`strategies.contributions.declared`).
    sends: ClassVar[tuple[str, ...] | None] = None
    tells: ClassVar[tuple[str, ...] | None] = None
    #: Of these, what nodes send only with a setting that is not the default: by name that setting, as tables say it.
    optional: ClassVar[Mapping[str, str]] = {}

    def __init__(self, federation: Federation, params: P, observer: Observer) -> None:
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=federation.min_nodes)
        self.federation = federation
        self.params = params
        self.knowledge: Arrays = {}
        self.state: Arrays = {}
        self.moments: Arrays = {}
        self.last_nodes: tuple[int, ...] = ()
        self.memory = NodeMemory()
        self.completed = 0  # full rounds of the run before this process; Flower counts from 1 after them
        self.roster = Roster(
            federation.domains, federation.engine, federation.run_json, federation.num_classes
        )  # fmt: skip
        self.roster.max_images = federation.max_images
        self.recovery = Recovery()
        self._observer = observer
        self._result = RoundResult(0)
        self._asked: dict[int, Node] = {}
        self._sent = Sent()
        self._kind: str = MessageType.TRAIN  # of what was sent last
        self.start_values = Start(federation.start, federation.frozen)
        self._gaps: Arrays = {}  # what weighing by generalisation gaps keeps of this round
        self._tests_seen: dict[str, int] = {}  # test images by domain, as its nodes say
        self._global = ArrayRecord()
        self._encoder = Encoder()
        self._evaluation: Evaluation | None = None
        self._clock = Clock(on=federation.profile, shared_processes=self._is_simulated)

    # --- hooks of a method -------------------------------------------------------------------------

    @classmethod
    def check_run(cls, params: P, rounds: int) -> None:
        """Raise ``ConfigError`` if the method cannot run so; called before anything starts."""

    @classmethod
    def uses_rounds(cls, params: P) -> str:
        """Return what of the method goes by the number of rounds of the run; empty if nothing does.

        Of such a method a run cannot be made longer when it is resumed: its first rounds would have been others.
        """
        return ""

    @classmethod
    def averages(cls) -> bool:
        """Tell whether weights are merged by the default rule, which ``aggregation.robust`` and ``server`` build on."""
        return cls.merge is DomainStrategy.merge

    def scores_round(self, server_round: int) -> bool:
        """Tell whether models can be scored at all after this round."""
        return True

    def weights(self, updates: list[Update]) -> list[float]:
        """Return one weight per update, summing to 1; by default the share of training images."""
        return shares([update.num_examples for update in updates])

    def state_bytes(self, weights: ArrayRecord, nodes: int) -> int:
        """Return how large ``state`` and ``knowledge`` get after a round of so many nodes, where they grow with these.

        Asked before round 1, for the disk's sake.
        """
        return 0

    def start_run(self, weights: ArrayRecord) -> None:
        """Prepare ``knowledge`` and ``state`` once, before round 1 of a run; ``weights`` are the initial ones.

        A run that is resumed finds both as they were. (Flower calls its whole loop ``start``.)
        """

    def merge(self, updates: list[Update], weights: list[float]) -> ArrayRecord:
        """Return the next shared weights; by default the weighted average, or what ``aggregation.robust`` asks for.

        A run with ``aggregation.robust`` or ``server.optimizer`` refuses a method that overrides this.

        Args:
            updates: In the order of the nodes. The list may be emptied on the way, so that weights can be let go.
            weights: One per update, summing to 1.

        Raises:
            FederationError: If the run's rule needs more updates.
        """
        rule = self.federation.aggregation
        if rule.robust == "none":
            return average(updates, weights)
        return robust.merge(rule, updates, weights, decode(self.sent), len(self._asked))

    def scored_weights(self) -> ArrayRecord:
        """Return the shared weights that nodes score; by default those that the next round begins with."""
        return self._global

    def knowledge_for(self, node: Node, ask: Ask) -> Arrays:
        """Return the arrays that this node is sent besides weights; by default ``knowledge``, the same for all.

        An array that several nodes get is written once, if it is the same object.
        """
        return self.knowledge

    def tell(self, node: Node, ask: Ask) -> Scalars:
        """Return the numbers and words that this node is told: ``self.told`` of its client."""
        return {}

    def expected(self) -> Declaration:
        """Return what nodes contribute in this run, of what ``contributes`` declares; by default all of it."""
        return self.contributes

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Turn the nodes' contributions, in the order of their index, into ``self.knowledge``."""

    # --- tools for methods -------------------------------------------------------------------------

    @property
    def server_round(self) -> int:
        """The round that is going on, from 1; 0 before the first."""
        return self._result.server_round

    @property
    def sent(self) -> ArrayRecord:
        """The shared weights that nodes are sent in this round, without what is frozen; after ``merge`` of the next."""
        return self._global

    def node_weights(self, updates: list[Update]) -> list[float]:
        """Return the weight of each update by the run's rule (``aggregation.weights``), else by the method's.

        Raises:
            FederationError: If they are not as many as the updates, finite, from 0 up and 1 in sum.
        """
        rule = self.federation.aggregation
        found = self._by_gaps(updates) if rule.weights == "ga" else by_rule(rule, updates, self.roster.num_domains)
        if found is not None:
            return check_weights(found, len(updates), f"aggregation.weights={rule.weights}")
        return check_weights(self.weights(updates), len(updates), f"the method {self.federation.method!r}")

    # --- a round -----------------------------------------------------------------------------------

    def gather(self, grid: Grid) -> None:
        """Wait for the nodes and ask each what it is, before the first round.

        Raises:
            FederationError: If too few come that can take part, also for the run's robust average; in a simulation,
                if one cannot.
        """
        self.roster.gather(grid, self.federation.min_nodes, self.federation.node_timeout)
        robust.check_number(self.federation.aggregation, self.federation.number(len(self.roster.nodes)))

    def settle(self, run_json: str) -> None:
        """Send this configuration from now on: it says what the nodes' answers have decided."""
        self.federation = replace(self.federation, run_json=run_json)
        self.roster.tell(run_json)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the nodes of the round and write a message to each."""
        server_round += self.completed
        self._kind = MessageType.TRAIN
        self.roster.silence.next_round()
        self._started = time.perf_counter()
        self._clock.start()
        self._result = RoundResult(server_round)
        self._grid, self._global = grid, self.start_values.moving(arrays)
        if server_round == 1:
            self.start_run(self._global)
        self._encoder = Encoder()
        try:
            present = self.roster.wait_for(grid, self.federation.min_nodes, self.federation.node_timeout)
            nodes = self.federation.sample(server_round, present)
            robust.check_number(self.federation.aggregation, len(nodes))
        except FederationError as error:
            raise FederationError(f"round {server_round}: {error}") from None
        self._tests_seen = {node.domain: node.num_test for node in present}
        self._asked = {node.node_id: node for node in nodes}
        self.roster.listener.asked(server_round, nodes, training=True)
        work = {node: node.num_examples for node in nodes}  # times the local epochs, the same for all
        asked = ga.asked_of(self.federation.aggregation)
        messages = [
            self._message(
                MessageType.TRAIN, node, self._global, server_round, self._local_domains(node, server_round) | asked
            )
            for node in longest_first(work)
        ]
        self._sent = Sent(messages)
        self._result.bytes_down = sum(num_bytes(message.content) for message in messages)
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
        replies = self._answers(replies)
        self._clock.lap(clock.TRAINING)
        sent = SentWeights(decode(self._global), self.federation.max_update, self.federation.noise)
        sifted = sift(
            self._asked, replies, lambda node, reply: self._read(node, reply, sent), sent, self.federation.max_update
        )
        updates, problems = sifted.updates, sifted.problems
        for node, reason in problems:
            self._leave_out(node, reason, lost=reason == checks.NO_ANSWER)
        if sifted.gone_bad and self.recovery.blame is not None:
            return self._go_back(self.recovery.blame)
        if not updates:
            raise FederationError(f"round {server_round}: no node delivered a usable result: {by_reason(problems)}")
        weights = self.node_weights(updates)
        here = Point(server_round, self._global, dict(self.knowledge), dict(self.state), dict(self.moments))
        self.recovery.note(updates, weights, here)
        self.merge_knowledge(updates)
        self._result.nodes = [update.node.index for update in updates]
        self.last_nodes = tuple(self._result.nodes)
        self._result.losses = mean_losses(updates)
        if self._scores_clients(server_round):
            self._result.clients = own_models.read(updates, self.roster.nodes, self.federation, self._leave_out)
        merged = self.merge(updates, weights)
        self._global, stepped = server_optimizer.step(self.federation, merged, self.sent, self.moments, server_round)
        self.moments = stepped | self._gaps
        if not is_finite(self._global):
            if self.recovery.blame is None:
                raise FederationError(f"round {server_round}: the averaged weights hold numbers that are not finite")
            return self._go_back(self.recovery.blame)
        self._clock.lap(clock.AVERAGING)
        return self.start_values.whole(self._global), MetricRecord(dict(self._result.losses))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask, for each domain, the nodes that can tell its accuracy; nobody in a round that is not scored."""
        server_round += self.completed
        fed = self.federation
        self._evaluation = None
        self._encoder = Encoder()  # knowledge has been merged since
        if not fed.evaluate.scores_global(server_round, fed.rounds) or not self.scores_round(server_round):
            return []
        nodes = self.roster.online(grid, fed.node_timeout)
        if fed.retakes:
            trained = self._result.nodes or [node.index for node in nodes]  # none where the run has gone back
            self._result.statistics = self._retake([node for node in nodes if node.index in trained])
            nodes = [node for node in nodes if not self.roster.silence.has(node.node_id)]
        self._result.untrained, silent = untrained.at_score(fed, nodes, self.memory.rounds, server_round)
        self._evaluation = fed.evaluation(server_round, nodes, silent)
        return self._questions(self._evaluation, self._evaluation.first(), server_round)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Group correct and count by domain; a node that fails is replaced by the next of its domain."""
        server_round += self.completed
        if self._evaluation is not None:
            self._score(self._evaluation, replies, server_round)
            self._clock.lap(clock.EVALUATION)
        self._result.profile = self._clock.report()
        self._result.seconds = time.perf_counter() - self._started
        self._observer(self._result, self.start_values.whole(self._global))
        told = {domain: value for domain, value in self._result.accuracy.items() if value is not None}
        return MetricRecord({f"accuracy/{domain}": value for domain, value in told.items()})

    def score_again(self, grid: Grid, arrays: ArrayRecord, result: RoundResult) -> None:
        """Score the weights after a full round once more; the observer is told as after the round itself.

        Args:
            grid: With the nodes.
            arrays: The shared weights, where ``completed``, ``knowledge`` and ``state`` are those of then as well.
            result: The round; its scores are replaced.
        """
        self._started, self._grid = time.perf_counter() - result.seconds, grid
        self._clock.start()
        self._result, self._global = result, self.start_values.moving(arrays)
        questions = self.configure_evaluate(0, arrays, ConfigRecord(), grid)  # counted from ``completed`` on
        self.aggregate_evaluate(0, grid.send_and_receive(questions, timeout=self.federation.node_timeout))

    # --- parts of a round --------------------------------------------------------------------------

    def _go_back(self, blame: Blame) -> tuple[ArrayRecord, MetricRecord]:
        """Leave the node that moved the average out of the rest of the run, and go back to the weights before it."""
        point = blame.point
        self._global, self.knowledge, self.state, self.moments = (
            point.weights, point.knowledge, point.state, point.moments,
        )  # fmt: skip
        self._result.nodes, self._result.losses = [], {}
        self.recovery = Recovery()
        self.roster.exclude(blame.node)
        self._leave_out(
            blame.node,
            f"the model has gone bad, and this node moved the average by {100 * blame.share:.0f} %: it is left out of "
            f"the rest of the run, which goes back to the weights before round {point.server_round}",
        )
        self._clock.lap(clock.AVERAGING)
        return self.start_values.whole(self._global), MetricRecord()

    def _message(
        self, kind: str, node: Node, arrays: ArrayRecord, server_round: int,
        asked: Mapping[str, Any],
    ) -> Message:  # fmt: skip
        ask = Ask(server_round, kind == MessageType.TRAIN)
        told = {TOLD + name: value for name, value in self.tell(node, ask).items()}
        config = ConfigRecord({
            SERVER_ROUND: server_round, NODE_INDEX: node.index, ENGINE: self.federation.engine,
            RUN: self.federation.run_json, **self.memory.told(node), **told, **asked,
        })  # fmt: skip
        knowledge = self._encoder.record(self.knowledge_for(node, ask))
        content = RecordDict({ARRAYS: arrays, KNOWLEDGE: knowledge, CONFIG: config})
        if RETAKEN in asked.get(BN_WAYS, ()):
            content[STATISTICS] = self._encoder.record(self._result.statistics)
        self.start_values.put(content, node.node_id)
        return Message(content, node.node_id, kind)

    def _in_order(self, messages: list[Message], work: Mapping[Node, int]) -> Iterable[Message]:
        """Return messages, longest first, so that Flower's simulation keeps to that."""
        return in_waves(messages, sorted(work.values(), reverse=True)) if self.federation.queues else messages

    def _questions(self, evaluation: Evaluation, parts_of: Questions, server_round: int) -> Iterable[Message]:
        self.roster.listener.asked(server_round, list(parts_of), training=False)
        more: dict[str, Any] = {VALIDATION: True} if evaluation.validating else {}
        if self.federation.bn_ways != (AVERAGED,):
            more |= {BN_WAYS: list(self.federation.bn_ways), BN_IMAGES: self.federation.evaluate.bn_images}
        if evaluation.counting:
            more |= {FIGURES: True}
        work = {node: sum(len(part) for part in parts) for node, parts in parts_of.items()}
        return self._evaluating(
            work, lambda node: asked_of(parts_of[node], sliced=self._is_simulated) | more, server_round
        )

    def _evaluating(
        self, work: Mapping[Node, int], asked: Callable[[Node], Mapping[str, Any]], server_round: int
    ) -> Iterable[Message]:
        """Return a question to each node about the weights that are scored, the longest work first."""
        self._kind = MessageType.EVALUATE
        weights = self.scored_weights()
        messages = [
            self._message(MessageType.EVALUATE, node, weights, server_round, asked(node))
            for node in longest_first(work)
        ]
        self._sent = Sent(messages)
        return self._in_order(messages, work)

    def _retake(self, nodes: list[Node]) -> Arrays:
        """Have BatchNorm's statistics taken anew with the averaged weights, and merge them."""
        server_round = self._result.server_round

        def ask(work: dict[Node, int], asked: dict[str, Any]) -> Iterable[Message]:
            self.roster.listener.asked(server_round, nodes, training=False)
            messages = self._evaluating(work, lambda node: asked, server_round)
            return self._answers(self._grid.send_and_receive(messages, timeout=self.federation.node_timeout))

        weights = self.scored_weights()
        return statistics.retaken(nodes, weights, self.federation, server_round, ask, self._hear, self._leave_out)

    def _score(self, evaluation: Evaluation, replies: Iterable[Message], server_round: int) -> None:
        """Write the scores of the global model into the round's result, asking again where a node failed."""
        while True:
            for node, problem in evaluation.read(self._answers(replies), self._hear):
                self._leave_out(node, f"could not evaluate: {problem}", lost=problem == checks.NO_ANSWER)
            again = evaluation.replacements()
            if not again:
                break
            replies = self._grid.send_and_receive(
                self._questions(evaluation, again, server_round), timeout=self.federation.node_timeout
            )
        tally = evaluation.tally()
        self._result.accuracy, self._result.test_loss = tally.accuracy(), tally.loss()
        self._result.others, self._result.counts = tally.others(), evaluation.counts()
        self._result.spread = evaluation.spread() if self.federation.everywhere else {}
        self._result.evaluated_share = evaluation.share
        if self.federation.validation:
            self._result.validation = evaluation.validation.accuracy()

    def _by_gaps(self, updates: list[Update]) -> list[float]:
        fed, nodes = self.federation, [node.index for node in self.roster.nodes]
        found, self._gaps = ga.weigh(fed.aggregation, updates, nodes, self.moments, self.server_round, fed.rounds)
        return found

    def _scores_clients(self, server_round: int) -> bool:
        asked = self.federation.evaluate.scores_clients(server_round, self.federation.rounds)
        return asked and self.scores_round(server_round)

    def _local_domains(self, node: Node, server_round: int) -> dict[str, list[str]]:
        """Return on which domains a node is to score its own model this round, as it is told."""
        return own_models.asked_of(node, self.federation) if self._scores_clients(server_round) else {}

    def _read(self, node: Node, reply: Message, weights: SentWeights) -> Update:
        fed = self.federation
        content = checks.opened(reply, (ARRAYS, KNOWLEDGE, METRICS))
        metrics = checks.metrics_of(content)
        asked = self._local_domains(node, self._result.server_round).get(LOCAL_DOMAINS, [])
        tests = tests_of(node, asked, {} if fed.own_tests else self._tests_seen)
        own_test = node.num_test if node.shared_test else 0
        checks.trained(metrics, node.num_examples, fed.terms, tests, own_test, gap=bool(ga.asked_of(fed.aggregation)))
        self._hear(node, metrics)
        update = read_update(node, content, metrics, weights, fed.max_value)
        sizes, declared = {"C": fed.num_classes, "D": fed.feature_dim}, self.expected()
        check_contribution(update.knowledge, declared, sizes, node.class_counts, fed.max_value)
        update = announced.weighed(update, self.roster.most_images, declared)
        self._result.bytes_up += num_bytes(reply.content)
        del reply.content[ARRAYS]
        return update

    def _answers(self, replies: Iterable[Message]) -> list[Message]:
        """Return the answers to what was sent, one of each node; others are let go, with a line."""
        answers, strays = self._sent.answers(replies)
        self.start_values.heard(answers)
        self.roster.heard([reply.metadata.src_node_id for reply in answers], self._kind)
        self.roster.listener.answered([reply.metadata.src_node_id for reply in answers])
        let_go_strays(strays, self.roster.nodes, self._result.server_round)
        if self._is_simulated:
            check_whole(answers, self.roster.nodes, self._result.server_round)
        return answers

    def _hear(self, node: Node, metrics: Mapping[str, Any]) -> None:
        """Note what a node says of its memory and its time; its numbers are checked."""
        if problem := self.memory.hear(node, self._result.server_round, metrics):
            self._result.started_anew.append(problem)
        if self.federation.profile:
            self._clock.hear(node.index, metrics)

    @property
    def _is_simulated(self) -> bool:
        return self.federation.engine == "simulation"

    def _leave_out(self, node: Node, reason: str, *, lost: bool = False) -> None:
        """Note that a node's answer is not used; ``lost`` if that is no fault of its own."""
        number = self._result.server_round
        if lost and self._is_simulated:  # where there is a network it is a matter of course
            self._result.lost = sorted({*self._result.lost, node.index})
        elif lost:
            self.roster.missed(node, self._kind)
        told = {"event": "left_out", "round": number, "node": node.index, "domain": node.domain}
        log.warning("round %d: %s left out: %s", number, node, reason, extra=told)
        self.roster.listener.left_out(number, node, reason)
        self._result.left_out.append(f"{node}: {reason}")
