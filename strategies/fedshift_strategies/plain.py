"""Strategies for one's own Flower app: a method's server half with plain arguments, as ``flwr.serverapp.strategy`` has.

    from fedshift_strategies import FedProto
    strategy = FedProto(fraction_train=0.5, weighted_by_key="num-examples", prototype_mean="plain")
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=3)

Sampling, the loop, scores and the average of metrics are those of Flower's ``FedAvg``; the method's own hooks merge.
A method fits if they read nothing of nodes but their order and number (:mod:`fedshift_strategies.fitting`); of the run
they may read what ``start`` is given, and what becomes an argument (``OF_RUN``).
"""

import inspect
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from pydantic import Field as Bound

from fedshift_core.arguments import as_arguments
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.limits import LARGEST_COUNT, Refused, as_found
from fedshift_core.params import Params, Seed
from fedshift_core.wire.names import KNOWLEDGE
from fedshift_core.wire.records import array_record, encode
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.contributions import LABELS, check_contribution, declared
from fedshift_strategies.federation.context import Ask, ModelFacts, RoundResult, RunContext
from fedshift_strategies.federation.roster import Node, Roster
from fedshift_strategies.federation.updates import Update, decode
from fedshift_strategies.weighting import check_weights

log = logging.getLogger("flwr")

#: What hooks may read of the run that ``start`` does not know: by name the type of an argument, and its bounds.
OF_RUN: dict[str, Any] = {
    "seed": (Seed, 0),
    "num_classes": (int, Bound(ge=1)),
    "feature_dim": (int, Bound(ge=1)),
    "buffers": (tuple[str, ...], Bound()),
}
_LETTERS = {"C": "num_classes", "D": "feature_dim"}
_BOUNDS: Mapping[str, Any] = {"fraction": {"ge": 0, "le": 1}, "min": {"ge": 0}}
OF_FLOWER: dict[str, Any] = {
    name: (each.annotation, Bound(each.default, **_BOUNDS.get(name.partition("_")[0], {})))
    for name, each in inspect.signature(FedAvg).parameters.items()
}


@dataclass(frozen=True)
class PlainNode:
    """A node as Flower knows it, with its place in the order of those that came."""

    node_id: int
    index: int

    def __str__(self) -> str:
        return f"node {self.node_id}"


@dataclass
class PlainRun:
    """The run as hooks read it."""

    rounds: int = 0
    seed: int = 0
    num_classes: int = 0
    feature_dim: int = 0
    buffers: tuple[str, ...] = ()
    trained = ModelFacts.trained


class PlainRoster:
    """The nodes that were ever connected, in the order in which they came."""

    def __init__(self) -> None:
        self._nodes: dict[int, PlainNode] = {}

    @property
    def nodes(self) -> list[PlainNode]:
        """All of them."""
        return [*self._nodes.values()]

    def node(self, node_id: int) -> Node:
        """Return a node; a new one comes after the others."""
        return cast(Node, self._nodes.setdefault(node_id, PlainNode(node_id, len(self._nodes))))


class PlainStrategy(DomainStrategy[Any]):
    """Flower's FedAvg around the hooks of a method."""

    method: ClassVar[type[DomainStrategy[Any]]]
    #: The method's parameters, Flower's arguments, and what the method needs of the run.
    arguments: ClassVar[type[Params]]
    #: Those that may be given: all but parameters of the method that only its nodes read.
    accepted: ClassVar[tuple[str, ...]]

    def __init__(self, **given: Any) -> None:
        self.params = as_arguments(self.arguments, given, type(self).__name__, self.accepted)
        FedAvg.__init__(self, **{name: getattr(self.params, name) for name in OF_FLOWER})
        facts = {name: getattr(self.params, name) for name in self.arguments.model_fields if name in OF_RUN}
        self.federation = cast(RunContext, PlainRun(**facts))
        self._sizes = {letter: facts[name] for letter, name in _LETTERS.items() if name in facts}
        self._plain = PlainRoster()
        self._shares: list[float] = []  # the weights of this round's nodes; a rule may take a step each time
        self._restart()
        self._try_tell(given)

    def _restart(self) -> None:
        self.knowledge, self.state = {}, {}
        self._result, self._global = RoundResult(0), ArrayRecord()

    def _try_tell(self, given: Mapping[str, Any]) -> None:
        """Refuse arguments with which the method would read what Flower's nodes do not say of themselves."""
        probe = PlainRoster()
        self.roster = cast(Roster, probe)
        try:
            self.tell(probe.node(0), Ask(1, True))
        except AttributeError as error:
            if not isinstance(error.obj, PlainNode | PlainRoster | PlainRun):
                raise
            of_method = self.method.params_model.model_fields
            own = [f"{name}={as_found(value)}" for name, value in given.items() if name in of_method]
            raise ConfigError(
                f"{type(self).__name__}: with {', '.join(own)} it needs {error.name} of each node, which Flower's do "
                "not say"
            ) from None
        self.roster = cast(Roster, self._plain)

    # --- Flower's contract -------------------------------------------------------------------------

    def start(self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, *more: Any, **named: Any) -> Result:
        """Run Flower's loop from nothing; arguments and result are those of Flower's strategies."""
        type(self).check_run(self.params, num_rounds)
        self._restart()
        cast(PlainRun, self.federation).rounds = num_rounds
        return FedAvg.start(self, grid, initial_arrays, num_rounds, *more, **named)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose nodes as FedAvg does, and send each what the method has for it."""
        messages = list(FedAvg.configure_train(self, server_round, arrays, config, grid))
        for node_id in sorted(grid.get_node_ids()):
            self._plain.node(node_id)
        self._result, self._global, self._shares = RoundResult(server_round), arrays, []
        if server_round == 1:
            self.start_run(arrays)
        return [self._own(message, Ask(server_round, True), config) for message in messages]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies as FedAvg does, and merge them as the method does.

        Raises:
            InconsistentMessageReplies: If a reply does not hold what the method's nodes send; ``ValueError`` where
                Flower has no such error.
        """
        replies = list(replies)
        known = {reply.metadata.src_node_id: _popped(reply) for reply in replies if not reply.has_error()}
        valid, _ = self._check_and_log_replies(replies, is_train=True)
        if not valid:
            return None, None
        place = {reply.metadata.src_node_id: self._plain.node(reply.metadata.src_node_id).index for reply in valid}
        valid.sort(key=lambda reply: place[reply.metadata.src_node_id])
        updates = [self._update(reply, known[reply.metadata.src_node_id]) for reply in valid]
        if not any(update.num_examples for update in updates):
            raise _inconsistent(f"`{self.weighted_by_key}` is 0 in all replies.")
        metrics = self.train_metrics_aggr_fn([reply.content for reply in valid], self.weighted_by_key)
        weights = self.node_weights(updates)
        self.merge_knowledge(updates)
        self._global = self.merge(updates, weights)
        return self._global, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose nodes as FedAvg does, and send each the weights that the method scores."""
        if not self.scores_round(server_round):
            return []
        messages = FedAvg.configure_evaluate(self, server_round, self.scored_weights(), config, grid)
        return [self._own(message, Ask(server_round, False), config) for message in messages]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the scores as FedAvg does."""
        return FedAvg.aggregate_evaluate(self, server_round, replies)

    # --- parts -------------------------------------------------------------------------------------

    def _own(self, message: Message, ask: Ask, config: ConfigRecord) -> Message:
        """Return a message with the knowledge for its node, if the method has any, and what it tells it."""
        node = self._plain.node(message.metadata.dst_node_id)
        content = RecordDict({**message.content})
        content[self.configrecord_key] = ConfigRecord({**config, **self.tell(node, ask)})
        if declared(self.method, "sends") != ():
            content[KNOWLEDGE] = encode(self.knowledge_for(node, ask))
        message.content = content
        return message

    def _update(self, reply: Message, knowledge: Arrays) -> Update:
        node = self._plain.node(reply.metadata.src_node_id)
        try:
            (record,) = reply.content.array_records.values()
            (metrics,) = reply.content.metric_records.values()
            number = cast(int, metrics[self.weighted_by_key])  # a float weighs as well
            if not 0 <= number < math.inf:
                raise Refused(f"{self.weighted_by_key}={number}, expected a number from 0 up")
            if strange := sorted({*record} ^ {*self._global}):
                raise Refused(f"its arrays are not those that it was sent: {', '.join(strange[:3])}")
            self._check(knowledge)
        except Refused as refused:
            raise _inconsistent(f"{node}: {refused}") from None
        return Update(node, record, knowledge, number, {})

    def _check(self, knowledge: Arrays) -> None:
        """Refuse knowledge that is not what the method declares, or of other sizes than that of the first node."""
        expected = self.expected()
        for name, shape in expected.items():
            for letter, size in zip(shape, knowledge[name].shape if name in knowledge else (), strict=False):
                if letter in _LETTERS:
                    self._sizes.setdefault(str(letter), size)
        labels = knowledge.get(LABELS, np.zeros(0, np.int64))
        classes = self._sizes.get("C", int(labels.max(initial=-1)) + 1)
        check_contribution(knowledge, expected, self._sizes, [LARGEST_COUNT] * classes, math.inf)

    def node_weights(self, updates: list[Update]) -> list[float]:
        """Return the weight of each update by the method's rule, once in a round."""
        self._shares = self._shares or check_weights(self.weights(updates), len(updates), type(self).__name__)
        return [*self._shares]

    def _leave_out(self, node: Node, reason: str, *, lost: bool = False) -> None:
        log.warning("%s: %s", node, reason)


def _popped(reply: Message) -> Arrays:
    """Take the knowledge out of a reply, which leaves what Flower's own check expects."""
    record = array_record(reply.content, KNOWLEDGE)
    if record is None:
        return {}
    del reply.content[KNOWLEDGE]
    return decode(record)


def _inconsistent(reason: str) -> Exception:
    try:
        from flwr.serverapp.exception import InconsistentMessageReplies
    except ImportError:  # Flower does not export it (fedshift_app/flower/sources.py)
        return ValueError(reason)
    return InconsistentMessageReplies(reason=reason)
