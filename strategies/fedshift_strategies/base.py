"""One round: choose nodes, send, check, average, evaluate by domain. By itself a strategy is FedAvg.

FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, https://arxiv.org/abs/1602.05629, algorithm 1.

A method subclasses :class:`DomainStrategy` and overrides hooks (:mod:`fedshift_strategies.hooks`). What composes with
every method is a feature (:mod:`fedshift_strategies.features`): a round calls all of them and names none. The types and
tools that methods need are in :mod:`fedshift_strategies.method`.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedshift_core.arrays import Arrays, check_kept
from fedshift_core.errors import FederationError
from fedshift_core.params import P
from fedshift_core.wire.names import ARRAYS, KNOWLEDGE, METRICS
from fedshift_core.wire.scores import parts_to_options
from fedshift_strategies.contributions import check_contribution, of_features
from fedshift_strategies.features.base import Phase, Scoring, Training
from fedshift_strategies.features.catalog import Around
from fedshift_strategies.federation import announced, checks, context
from fedshift_strategies.federation.attendance import Attendance, untrained
from fedshift_strategies.federation.averaging import check_merged
from fedshift_strategies.federation.context import RoundResult, RunContext
from fedshift_strategies.federation.evaluation import Questions
from fedshift_strategies.federation.memory import NodeMemory
from fedshift_strategies.federation.one_time_payload import Start
from fedshift_strategies.federation.post import Post
from fedshift_strategies.federation.recovery import Blame, Point, Recovery, is_finite
from fedshift_strategies.federation.roster import Node
from fedshift_strategies.federation.update_norms import SentWeights
from fedshift_strategies.federation.updates import Update, by_reason, decode, mean_losses, num_bytes, read_update, sift
from fedshift_strategies.hooks import MethodHooks as MethodHooks
from fedshift_strategies.hooks import Observer as Observer
from fedshift_strategies.hooks import Scalars as Scalars

log = logging.getLogger("fedshift")
Part = TypeVar("Part", bound=Phase)


class DomainStrategy(MethodHooks[P]):
    """FedAvg over nodes with domains. Weights are averaged by number of training images.

    Attributes:
        start_values: What nodes begin from in addition to the shared weights; sent to each once.
        completed: Full rounds of the run before this process; Flower counts from 1 after them.
        memory: What the server knows of the private arrays of nodes.
    """

    def __init__(self, federation: RunContext, params: P, observer: Observer) -> None:
        super().__init__(federation, params, observer)
        self.memory = NodeMemory()
        self.completed = 0
        self.recovery = Recovery()
        self._usual: dict[str, list[float]] = {}  # norms of what nodes contribute, of an earlier round
        self.start_values = Start(federation.model.start, federation.model.frozen)
        self._post = Post(self)
        self._attendance = Attendance(self.roster, self._result)
        self._scoring: Scoring | None = None
        self._around = Around()
        post, weights = self._post, self._global
        self._training = Training(self._result, self, (), [], weights, post.query, self._leave_out, self._observe)
        self._timeout = federation.engine.node_timeout

    # --- before the first round --------------------------------------------------------------------

    def gather(self, grid: Grid) -> None:
        """Wait for the nodes and ask each what it is, before the first round.

        Raises:
            FederationError: If too few come that can take part, also for the run's features; in a simulation, if one
                cannot.
        """
        self.roster.gather(grid, self.federation.engine.min_nodes, self._timeout)
        self.features.describe(self.roster.nodes)

    def settle(self, run_json: str) -> None:
        """Send this configuration from now on: it says what the nodes' answers have decided."""
        self.federation = replace(self.federation, run_json=run_json)
        self.roster.tell(run_json)

    def resume(self, completed: int, knowledge: Arrays, state: Arrays, moments: Arrays) -> None:
        """Go on where a run was after so many full rounds, of which a checkpoint holds the arrays."""
        self.completed = completed
        self.start_values.on_disk = self.federation.engine.is_simulation
        self.knowledge, self.state, self.moments = dict(knowledge), dict(state), dict(moments)

    # --- a round: training -------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the nodes of the round and write a message to each."""
        server_round += self.completed
        self.roster.silence.next_round()
        self._begin(RoundResult(server_round), arrays, grid)
        if server_round == 1:
            self.start_run(self._global)
        try:
            present = self.roster.wait_for(grid, self.federation.engine.min_nodes, self._timeout)
            self._attendance.note_absent(present)
            self._training = self._phase(
                Training,
                self.federation.sample(server_round, present),
                present=present,
                scored=self.scores_round(server_round),
                numbers=self._numbers,
            )
            self._around = Around((each.name, each.on_round(self._training)) for each in self.features)
        except FederationError as error:
            raise FederationError(f"round {server_round}: {error}") from None
        nodes = self._training.nodes
        self.roster.listener.asked(server_round, nodes, training=True)
        work = {node: node.num_examples for node in nodes}  # times the local epochs, the same for all
        around = self._around
        messages = self._post.write(MessageType.TRAIN, work, self._global, around.options, around.records())
        self._result.bytes_down = sum(num_bytes(message.content) for message in messages)
        self._lap(context.MESSAGES)
        return self._post.in_order(messages, work)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the usable replies in the order of the nodes and merge their knowledge.

        The weights are taken out of the replies and let go as they are averaged: Flower keeps its list of
        replies until those of the next round are all there.

        Raises:
            FederationError: If no reply can be used.
        """
        server_round, bounds = server_round + self.completed, self.federation.config.federation
        replies = self._post.answers(replies)
        self._lap(context.TRAINING)
        training = self._training
        sent = SentWeights(decode(self._global), bounds.max_update, training.noise())
        of_images = of_features(type(self), self.expected())
        sifted = self.features.gather(
            replies,
            training,
            sent,
            lambda rest: sift(rest, training.nodes, self._read, sent, bounds.max_update, of_images, self._usual),
        )
        updates, problems = sifted.updates, sifted.problems
        for node, reason in problems:
            self._leave_out(node, reason, lost=checks.is_lost(reason))
        if sifted.gone_bad and self.recovery.blame is not None:
            return self._go_back(self.recovery.blame)
        if not updates:
            raise FederationError(f"round {server_round}: no node delivered a usable result: {by_reason(problems)}")
        here = Point(server_round, self._global, dict(self.knowledge), dict(self.state), self.moments)
        weights = self.node_weights(updates)
        self.recovery.note(updates, weights, here)
        self.merge_knowledge(updates)
        self._result.nodes = [node.index for update in updates for node in update.nodes]
        self.last_nodes = tuple(self._result.nodes)
        self._result.losses = mean_losses(updates)
        training.updates = [replace(update, record=ArrayRecord()) for update in updates]
        self._global = self.features.merge(updates, weights, training, self._checked_merge)
        if not is_finite(self._global):
            if self.recovery.blame is None:
                raise FederationError(f"round {server_round}: the averaged weights hold numbers that are not finite")
            return self._go_back(self.recovery.blame)
        return self._end_training()

    # --- a round: scores ---------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask, for each domain, the nodes that can tell its accuracy; nobody in a round that is not scored."""
        server_round, fed = server_round + self.completed, self.federation
        self._scoring = None
        if not fed.config.evaluate.scores_global(server_round, fed.rounds) or not self.scores_round(server_round):
            return []
        nodes = self.roster.online(grid, self._timeout)
        self._attendance.note_absent(nodes)
        trained = self._result.nodes or [node.index for node in nodes]  # none where the run has gone back
        scoring = self._phase(Scoring, [node for node in nodes if node.index in trained])
        scoring.weights, scoring.means = self.scored_weights(), lambda asked: self.features.means(asked, scoring)
        scoring.ask = lambda *question: self._post.ask(scoring.weights, *question)
        self._around = Around((each.name, each.on_scores(scoring)) for each in self.features)
        nodes = [node for node in nodes if not self.roster.silence.has(node.node_id)]
        self._result.untrained, silent = untrained(fed, nodes, self.memory.rounds, server_round)
        self._scoring, scoring.evaluation = scoring, fed.evaluation(server_round, nodes, silent, self._around.asked)
        return self._questions(scoring, scoring.evaluation.first())

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Group correct and count by domain; a node that fails is replaced by the next of its domain."""
        if self._scoring is not None:
            self._score(self._scoring, replies)
            self._lap(context.EVALUATION)
            self._around.finish()
        self._result.seconds = time.perf_counter() - self._started
        self._observer(self._result, self.start_values.complete(self._global))
        accuracy = self._result.accuracy.items()
        return MetricRecord({f"accuracy/{domain}": value for domain, value in accuracy if value is not None})

    def score_again(self, grid: Grid, arrays: ArrayRecord, result: RoundResult) -> None:
        """Score the weights after a full round once more; the observer is called as after the round itself.

        Args:
            grid: With the nodes.
            arrays: The shared weights, where ``completed``, ``knowledge`` and ``state`` are those of then as well.
            result: The round; its scores are replaced.
        """
        self._begin(result, arrays, grid)
        self._started -= result.seconds
        self._score_now(arrays)

    def score_initial(self, grid: Grid, arrays: ArrayRecord) -> None:
        """Score the initial weights of a run without rounds; the observer is called as after a round, with number 0.

        Args:
            grid: With the nodes.
            arrays: The initial shared weights.
        """
        self._begin(RoundResult(0), arrays, grid)
        if not (self.knowledge or self.state):  # a run that goes on has them
            self.start_run(self._global)
        self.knowledge |= self.federation.model.knowledge
        self._score_now(arrays)

    # --- parts of a round --------------------------------------------------------------------------

    def _score_now(self, arrays: ArrayRecord) -> None:
        """Score weights outside Flower's loop; rounds are counted from ``completed`` on."""
        questions = self.configure_evaluate(0, arrays, ConfigRecord(), self._post.grid)
        self.aggregate_evaluate(0, self._post.send(questions))

    def _questions(self, scoring: Scoring, parts_of: Questions) -> Iterable[Message]:
        """Return a question to each node about the parts that it scores."""
        self.roster.listener.asked(self._result.server_round, list(parts_of), training=False)
        work = {node: sum(len(part) for part in parts) for node, parts in parts_of.items()}
        sliced, around = self.federation.engine.is_simulation, self._around

        def options(node: Node) -> Mapping[str, Any]:
            return parts_to_options(parts_of[node], sliced=sliced) | around.options(node)

        kind, weights = MessageType.EVALUATE, scoring.weights
        return self._post.in_order(self._post.write(kind, work, weights, options, around.records()), work)

    def _begin(self, result: RoundResult, arrays: ArrayRecord, grid: Grid) -> None:
        self._started = self._last = time.perf_counter()
        self._result = self._attendance.result = result
        self._post.grid, self._global = grid, self.start_values.moving(arrays)

    def _go_back(self, blame: Blame) -> tuple[ArrayRecord, MetricRecord]:
        """Leave out the node that stood out, and go back to the weights before it."""
        point = blame.point
        self._global, self.knowledge, self.state = point.weights, point.knowledge, point.state
        self.moments = point.moments
        self._result.nodes, self._result.losses = [], {}
        self.recovery = Recovery()
        self.roster.exclude(blame.node)
        self._leave_out(
            blame.node,
            f"the model has gone bad, and this node {blame.why}: it is left out of "
            f"the rest of the run, which goes back to the weights before round {point.server_round}",
        )
        return self._end_training()

    def _checked_merge(self, updates: list[Update], weights: list[float]) -> ArrayRecord:
        """Return the next shared weights by the method's rule, checked as all that it keeps is."""
        merged = self.merge(updates, weights)
        check_merged(merged, self._global)
        check_kept(self.knowledge, "self.knowledge")
        check_kept(self.state, "self.state")
        return merged

    def _phase(self, kind: type[Part], nodes: Iterable[Node], **more: Any) -> Part:
        """Return what features see of a part of the round."""
        self._observers: list[Callable[[Node, Mapping[str, Any]], None]] = []
        return kind(
            self._result,
            self,
            self.roster.nodes,
            list(nodes),
            self._global,
            self._post.query,
            self._leave_out,
            self._observe,
            self._observers,
            **more,
        )

    def _end_training(self) -> tuple[ArrayRecord, MetricRecord]:
        """End the training of a round."""
        self._lap(context.AVERAGING)
        self._around.finish()
        return self.start_values.complete(self._global), MetricRecord(dict(self._result.losses))

    def _lap(self, phase: str) -> None:
        """Add the time since the last call to a phase of the round (``fedshift_strategies.federation.context``)."""
        now = time.perf_counter()
        self._result.laps[phase] = self._result.laps.get(phase, 0.0) + now - self._last
        self._last = now

    def _score(self, scoring: Scoring, replies: Iterable[Message]) -> None:
        """Write the scores of the global model into the round's result, asking again where a node failed."""
        evaluation = scoring.evaluation
        while True:
            for node, problem in evaluation.read(self._post.answers(replies), self._observe):
                self._leave_out(node, f"could not evaluate: {problem}", lost=checks.is_lost(problem))
            if not (again := evaluation.replacements()):
                break
            replies = self._post.send(self._questions(scoring, again))
        tally = evaluation.tally()
        self._result.accuracy, self._result.test_loss = tally.accuracy(), tally.loss()
        self._result.others = tally.others()
        self._result.spread = evaluation.spread() if self.federation.everywhere else {}
        self._result.evaluated_share = evaluation.share

    def _numbers(self, node: Node, content: RecordDict) -> Mapping[str, Any]:
        """Return the numbers of a reply to a message to train; raise ``Refused`` where others are in it."""
        metrics = checks.metrics_of(content)
        checks.trained(metrics, node.num_examples, self.federation.model.terms, self._around.bounds(node))
        self._around.check(metrics)
        return metrics

    def _read(self, node: Node, reply: Message, weights: SentWeights) -> Update:
        """Return a reply to a message to train as an update; raise ``Refused`` where it may not be used."""
        fed, bounds = self.federation, self.federation.config.federation
        content = checks.opened(reply, (ARRAYS, KNOWLEDGE, METRICS))
        metrics = self._numbers(node, content)
        self._observe(node, metrics)
        update = read_update(node, content, metrics, weights, bounds.max_value)
        check_contribution(update.knowledge, self.expected(), fed.sizes, node.class_counts, bounds.max_value)
        update = replace(update, compared=self.comparable(update.knowledge, (node,)))
        update = announced.weighed(update, self.roster.most_images, self.expected())
        self._result.bytes_up += num_bytes(reply.content)
        del reply.content[ARRAYS]
        return update

    def _observe(self, node: Node, metrics: Mapping[str, Any]) -> None:
        """Take in the numbers of a reply, which are checked."""
        self._attendance.observe(node, metrics, self.memory)
        for observe in self._observers:
            observe(node, metrics)

    def _leave_out(self, node: Node, reason: str, *, lost: bool = False) -> None:
        """Note that a node gave no part; ``lost`` if it, or its machine, did not answer."""
        if lost and not self.federation.engine.is_simulation:
            self.roster.missed(node, self._post.kind)
        self._attendance.leave_out(node, reason)
