"""One round: choose nodes, send, check, average, evaluate by domain. By itself a strategy is FedAvg.

FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, https://arxiv.org/abs/1602.05629, algorithm 1.

A method subclasses :class:`DomainStrategy` and overrides hooks (:mod:`fedshift_strategies.hooks`). What composes with
every method is a feature (:mod:`fedshift_strategies.features`): a round calls all of them and names none.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedshift_core.arrays import Arrays, check_kept
from fedshift_core.errors import FederationError
from fedshift_core.losses import NOBODY
from fedshift_core.params import P
from fedshift_core.wire.messages import RunHeader, WorkRequest
from fedshift_core.wire.names import ARRAYS, KNOWLEDGE, METRICS, WITHHELD
from fedshift_core.wire.scores import parts_to_options
from fedshift_strategies.contributions import check_contribution, of_features
from fedshift_strategies.features.base import Exchange, Session, Training
from fedshift_strategies.federation import announced, checks, context, untrained
from fedshift_strategies.federation.context import Ask, RoundResult, RunContext
from fedshift_strategies.federation.dispatch import Encoder, in_waves, longest_first
from fedshift_strategies.federation.evaluation import Evaluation, Questions
from fedshift_strategies.federation.memory import NodeMemory
from fedshift_strategies.federation.one_time_payload import Start
from fedshift_strategies.federation.pending import Sent, check_whole, let_go_strays
from fedshift_strategies.federation.recovery import Blame, Point, Recovery, is_finite
from fedshift_strategies.federation.roster import Node
from fedshift_strategies.federation.update_norms import SentWeights
from fedshift_strategies.federation.updates import Update, by_reason, decode, mean_losses, num_bytes, read_update, sift
from fedshift_strategies.hooks import MethodHooks as MethodHooks
from fedshift_strategies.hooks import Observer as Observer
from fedshift_strategies.hooks import Scalars as Scalars

log = logging.getLogger("fedshift")


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
        self._asked: dict[int, Node] = {}
        self._withholding: set[int] = set()  # indices of nodes that let out less than was asked, as a line has said
        self._sent = Sent()
        self._kind: str = MessageType.TRAIN  # of what was sent last
        self._encoder = Encoder()
        self._evaluation: Evaluation | None = None
        self._timeout = federation.engine.node_timeout

    # --- before the first round --------------------------------------------------------------------

    def gather(self, grid: Grid) -> None:
        """Wait for the nodes and ask each what it is, before the first round.

        Raises:
            FederationError: If too few come that can take part, also for the run's features; in a simulation, if one
                cannot.
        """
        self.roster.gather(grid, self.federation.engine.min_nodes, self._timeout)
        self.features.check_number(self.federation.number(len(self.roster.nodes)))
        self.features.check_nodes(self.roster.nodes)

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
        self._encoder = Encoder()
        try:
            present = self.roster.wait_for(grid, self.federation.engine.min_nodes, self._timeout)
            self._note_absent(present)
            nodes = self.federation.sample(server_round, present)
            self.features.check_number(len(nodes))
            nodes = self.features.before_training(nodes, self._exchange(present))
        except FederationError as error:
            raise FederationError(f"round {server_round}: {error}") from None
        self._asked = {node.node_id: node for node in nodes}
        self._training = Training(
            server_round, self.roster.nodes, len(nodes), self._global, self.scores_round(server_round),
            {node.domain: node.num_test for node in present},
        )  # fmt: skip
        self.roster.listener.asked(server_round, nodes, training=True)
        work = {node: node.num_examples for node in nodes}  # times the local epochs, the same for all
        messages = self._messages(
            MessageType.TRAIN, work, self._global, lambda node: self.features.train_options(node, self._training)
        )
        self._result.bytes_down = sum(num_bytes(message.content) for message in messages)
        self.features.passed(context.MESSAGES)
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
        server_round, bounds = server_round + self.completed, self.federation.config.federation
        replies = self._answers(replies)
        self.features.passed(context.TRAINING)
        sent = SentWeights(decode(self._global), bounds.max_update, self.features.noise)
        sifted = self.features.gather(self._asked, replies, self._exchange(), sent) or sift(
            self._asked, replies, lambda node, reply: self._read(node, reply, sent), sent, bounds.max_update,
            of_features(type(self), self.expected()), self._usual,
        )  # fmt: skip
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
        for feature in self.features:
            feature.after_training(updates, self._training, self._result, self._leave_out)
        merged = self.merge(updates, weights)
        _check_merged(merged, self._global)
        check_kept(self.knowledge, "self.knowledge")
        check_kept(self.state, "self.state")
        self._global = self.features.step(merged, self._training)
        if not is_finite(self._global):
            if self.recovery.blame is None:
                raise FederationError(f"round {server_round}: the averaged weights hold numbers that are not finite")
            return self._go_back(self.recovery.blame)
        self.features.passed(context.AVERAGING)
        return self.start_values.complete(self._global), MetricRecord(dict(self._result.losses))

    # --- a round: scores ---------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask, for each domain, the nodes that can tell its accuracy; nobody in a round that is not scored."""
        server_round, fed = server_round + self.completed, self.federation
        self._evaluation = None
        self._encoder = Encoder()  # knowledge has been merged since
        if not fed.config.evaluate.scores_global(server_round, fed.rounds) or not self.scores_round(server_round):
            return []
        nodes = self.roster.online(grid, self._timeout)
        self._note_absent(nodes)
        trained = self._result.nodes or [node.index for node in nodes]  # none where the run has gone back
        session = Session(
            server_round, [node for node in nodes if node.index in trained], self._scored(), self._ask,
            self._observe, self._leave_out, self._query, self.features.hidden_means,
        )  # fmt: skip
        self.features.before_scores(session, self._result)
        nodes = [node for node in nodes if not self.roster.silence.has(node.node_id)]
        self._result.untrained, silent = untrained.at_score(fed, nodes, self.memory.rounds, server_round)
        self._evaluation = fed.evaluation(server_round, nodes, silent, list(self.features))
        return self._questions(self._evaluation, self._evaluation.first())

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Group correct and count by domain; a node that fails is replaced by the next of its domain."""
        if self._evaluation is not None:
            self._score(self._evaluation, replies)
            self.features.passed(context.EVALUATION)
        self.features.finish_round(self._result)
        self._result.seconds = time.perf_counter() - self._started
        self._observer(self._result, self.start_values.complete(self._global))
        accuracy = {domain: value for domain, value in self._result.accuracy.items() if value is not None}
        return MetricRecord({f"accuracy/{domain}": value for domain, value in accuracy.items()})

    def score_again(self, grid: Grid, arrays: ArrayRecord, result: RoundResult) -> None:
        """Score the weights after a full round once more; the observer is called as after the round itself.

        Args:
            grid: With the nodes.
            arrays: The shared weights, where ``completed``, ``knowledge`` and ``state`` are those of then as well.
            result: The round; its scores are replaced.
        """
        self._begin(result, arrays, grid)
        self._started -= result.seconds
        questions = self.configure_evaluate(0, arrays, ConfigRecord(), grid)  # counted from ``completed`` on
        self.aggregate_evaluate(0, grid.send_and_receive(questions, timeout=self._timeout))

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
        questions = self.configure_evaluate(0, arrays, ConfigRecord(), grid)
        self.aggregate_evaluate(0, grid.send_and_receive(questions, timeout=self._timeout))

    # --- parts of a round --------------------------------------------------------------------------

    def _begin(self, result: RoundResult, arrays: ArrayRecord, grid: Grid) -> None:
        self._started = time.perf_counter()
        for feature in self.features:
            feature.start_round()
        self._result, self._grid, self._global = result, grid, self.start_values.moving(arrays)

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
        self.features.passed(context.AVERAGING)
        return self.start_values.complete(self._global), MetricRecord()

    def _messages(
        self, kind: str, work: Mapping[Node, int], arrays: ArrayRecord, options: Callable[[Node], Mapping[str, Any]]
    ) -> list[Message]:
        """Return a message to each node, the longest work first; ``options`` are what only some runs ask for."""
        self._kind = kind
        messages = [self._message(kind, node, arrays, options(node)) for node in longest_first(work)]
        self._sent = Sent(messages)
        return messages

    def _message(self, kind: str, node: Node, arrays: ArrayRecord, options: Mapping[str, Any]) -> Message:
        ask = Ask(self._result.server_round, kind == MessageType.TRAIN)
        digest, start = self.start_values.for_node(node.node_id)
        header = RunHeader(self.federation.engine.name, self.federation.run_json, start_digest=digest)
        request = WorkRequest(
            self.memory.header(node, header), ask.server_round, node.index, arrays,
            self._encoder.record(self.knowledge_for(node, ask)), self.tell(node, ask), options,
            {name: self._encoder.record(of) for name, of in self.features.sent_records(options).items()}, start,
        )  # fmt: skip
        return Message(request.to_record(), node.node_id, kind)

    def _in_order(self, messages: list[Message], work: Mapping[Node, int]) -> Iterable[Message]:
        """Return messages, longest first, so that Flower's simulation keeps to that."""
        return in_waves(messages, sorted(work.values(), reverse=True)) if self.federation.engine.queues else messages

    def _scored(self) -> ArrayRecord:
        """Return the weights that nodes score, by the method and the features of the run."""
        return self.features.to_score(self.scored_weights())

    def _questions(self, evaluation: Evaluation, parts_of: Questions) -> Iterable[Message]:
        """Return a question to each node about the parts that it scores."""
        self.roster.listener.asked(self._result.server_round, list(parts_of), training=False)
        more = self.features.score_options(evaluation)
        work = {node: sum(len(part) for part in parts) for node, parts in parts_of.items()}
        sliced = self.federation.engine.is_simulation
        return self._evaluating(work, lambda node: parts_to_options(parts_of[node], sliced=sliced) | more)

    def _evaluating(self, work: Mapping[Node, int], options: Callable[[Node], Mapping[str, Any]]) -> Iterable[Message]:
        """Return a question to each node about the weights that are scored."""
        return self._in_order(self._messages(MessageType.EVALUATE, work, self._scored(), options), work)

    def _ask(
        self, work: Mapping[Node, int], options: Mapping[str, Any], own: Mapping[Node, Mapping[str, Any]] | None = None
    ) -> Iterable[Message]:
        """Send nodes a question of a feature about the scored weights, and return their answers."""
        self.roster.listener.asked(self._result.server_round, list(work), training=False)
        messages = self._evaluating(work, lambda node: {**options, **(own or {}).get(node, {})})
        return self._answers(self._grid.send_and_receive(messages, timeout=self._timeout))

    def _exchange(self, present: Sequence[Node] = ()) -> Exchange:
        """Return what features ask nodes with while a round trains."""
        fed = self.federation
        return Exchange(
            self._result, self._query, self._leave_out, self._observe, self._numbers, self.weighs_alike(self.params),
            self.expected(), {"C": fed.num_classes, "D": fed.feature_dim}, self.sums(self.params), present,
        )  # fmt: skip

    def _query(self, questions: dict[Node, dict[str, Any]]) -> list[Message]:
        """Send each node its question of a feature, without weights, and return the answers."""
        header = RunHeader(self.federation.engine.name, self.federation.run_json, self.memory.run_id)
        before, self._kind = self._kind, MessageType.QUERY
        messages = [
            Message(header.question(self._result.server_round, node.index, asked), node.node_id, MessageType.QUERY)
            for node, asked in questions.items()
        ]
        self._sent = Sent(messages)
        answers = self._answers(self._grid.send_and_receive(messages, timeout=self._timeout))
        self._kind = before
        return answers

    def _score(self, evaluation: Evaluation, replies: Iterable[Message]) -> None:
        """Write the scores of the global model into the round's result, asking again where a node failed."""
        while True:
            for node, problem in evaluation.read(self._answers(replies), self._observe):
                self._leave_out(node, f"could not evaluate: {problem}", lost=checks.is_lost(problem))
            again = evaluation.replacements()
            if not again:
                break
            replies = self._grid.send_and_receive(self._questions(evaluation, again), timeout=self._timeout)
        tally = evaluation.tally()
        self._result.accuracy, self._result.test_loss = tally.accuracy(), tally.loss()
        self._result.others = tally.others()
        self._result.spread = evaluation.spread() if self.federation.everywhere else {}
        self._result.evaluated_share = evaluation.share
        self.features.scored(evaluation, self._result)

    def _numbers(self, node: Node, content: RecordDict) -> Mapping[str, Any]:
        """Return the numbers of a reply to a message to train; raise ``Refused`` where others are in it."""
        metrics = checks.metrics_of(content)
        more = self.features.train_bounds(node, self._training)
        checks.trained(metrics, node.num_examples, self.federation.model.terms, more)
        self.features.read_train(metrics)
        return metrics

    def _read(self, node: Node, reply: Message, weights: SentWeights) -> Update:
        """Return a reply to a message to train as an update; raise ``Refused`` where it may not be used."""
        fed, bounds = self.federation, self.federation.config.federation
        content = checks.opened(reply, (ARRAYS, KNOWLEDGE, METRICS))
        metrics = self._numbers(node, content)
        self._observe(node, metrics)
        update = read_update(node, content, metrics, weights, bounds.max_value)
        sizes, declared = {"C": fed.num_classes, "D": fed.feature_dim}, self.expected()
        check_contribution(update.knowledge, declared, sizes, node.class_counts, bounds.max_value)
        update = announced.weighed(update, self.roster.most_images, declared)
        self._result.bytes_up += num_bytes(reply.content)
        del reply.content[ARRAYS]
        return update

    def _answers(self, replies: Iterable[Message]) -> list[Message]:
        """Return the answers to what was sent, one of each node; others are let go, with a line."""
        answers, strays = self._sent.answers(replies)
        senders = [reply.metadata.src_node_id for reply in answers]
        self.roster.record_answers(senders, self._kind)
        if self._kind != MessageType.QUERY:
            self.start_values.record_answers(answers)
            self.roster.listener.answered(senders)
        let_go_strays(strays, self.roster.nodes, self._result.server_round)
        if self.federation.engine.is_simulation:
            check_whole(answers, self.roster.nodes, self._result.server_round)
        return answers

    def _observe(self, node: Node, metrics: Mapping[str, Any]) -> None:
        """Note what a node says of its memory, and hand its numbers, which are checked, to the features."""
        if problem := self.memory.record(node, self._result.server_round, metrics):
            self._result.started_anew.append(problem)
        if WITHHELD in metrics and node.index not in self._withholding:
            self._withholding.add(node.index)
            fields = {"event": "withheld", "node": node.index, "domain": node.domain}
            log.info("%s lets out less than the run asks for: its owner's policy", node, extra=fields)
        self.features.observe(node, metrics)

    def _note_absent(self, present: Sequence[Node]) -> None:
        """Note which nodes of the run are not asked in this phase, and why, unless the round says so already."""
        result = self._result
        for line in self.roster.declined():
            if line not in result.left_out:
                result.left_out.append(line)
                result.lose(NOBODY)
        if len(present) == len(self.roster.nodes):  # of a simulation all, which may be a hundred thousand
            return
        present_ids = {node.node_id for node in present}
        absent = [node for node in self.roster.nodes if node.node_id not in present_ids]
        for node in absent:
            if node.index not in result.lost:
                result.left_out.append(f"{node}: not asked: {self.roster.why_absent(node)}")
        result.lose(*(node.index for node in absent))

    def _leave_out(self, node: Node, reason: str, *, lost: bool = False) -> None:
        """Note that a node gave no part; ``lost`` if it, or its machine, did not answer."""
        number = self._result.server_round
        self._result.lose(node.index)
        if lost and not self.federation.engine.is_simulation:
            self.roster.missed(node, self._kind)
        fields = {"event": checks.event_of(reason), "round": number, "node": node.index, "domain": node.domain}
        log.warning("round %d: %s left out: %s", number, node, reason, extra=fields)
        self.roster.listener.left_out(number, node, reason)
        self._result.left_out.append(f"{node}: {reason}")


def _check_merged(merged: ArrayRecord, before: ArrayRecord) -> None:
    """Refuse merged weights that are not the weights of the model.

    Raises:
        FederationError: With the first name that is missing, unknown, or of another shape or type.
    """
    if not isinstance(merged, ArrayRecord):
        raise FederationError(
            f"merge returned a {type(merged).__name__}; expected an ArrayRecord, such as encode(arrays)"
        )
    if strange := [name for name in (*before, *merged) if (name in before) != (name in merged)]:
        lacks = "lack" if strange[0] in before else "have an unknown"
        raise FederationError(f"the merged weights {lacks} {strange[0]!r}; merge must return all shared weights")
    for name, array in merged.items():
        found, expected = ((each.dtype, tuple(each.shape)) for each in (array, before[name]))
        if found != expected:
            raise FederationError(
                f"the merged {name} is of type {found[0]} and shape {found[1]}, the model's is of {expected[0]} and "
                f"{expected[1]}; merge must keep both (array.astype)"
            )
