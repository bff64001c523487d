"""What a node sends after local training: read, checked and averaged."""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from flwr.app import ArrayRecord, Message, RecordDict

from fedshift_core.arrays import Arrays
from fedshift_core.limits import Refused, Wild, check_numbers
from fedshift_core.plural import plural
from fedshift_core.wire.names import ARRAYS, KNOWLEDGE, LOSS, LOSS_TERM, NUM_EXAMPLES, START
from fedshift_core.wire.records import array_record, encode
from fedshift_core.wire.records import decode as decode
from fedshift_strategies.federation import checks
from fedshift_strategies.federation.averaging import RunningAverage, shares
from fedshift_strategies.federation.nodes import Node
from fedshift_strategies.federation.update_norms import SentWeights, far_from_others, out_of_proportion

NOT_FINITE = "not finite"  # in the error of a node that comes to such numbers


@dataclass(frozen=True)
class Update:
    """A node's usable reply after local training.

    Attributes:
        metrics: The numbers of the reply, which are checked: losses, and those of features.
        change: How far its weights are from those that it was sent: the norm over floating-point arrays.
        compared: Its contribution in the form in which nodes are compared (``MethodHooks.comparable``).
        members: The nodes of which it is the mean, ``node`` the first of them; empty: it is of ``node`` alone.
    """

    node: Node
    record: ArrayRecord
    knowledge: Arrays
    num_examples: int
    metrics: dict[str, float]
    change: float = 0.0
    members: tuple[Node, ...] = ()
    compared: Arrays = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that it is of."""
        return self.members or (self.node,)

    @property
    def stands_for(self) -> int:
        """How many nodes it is the mean of."""
        return len(self.nodes)

    def arrays(self) -> Arrays:
        """Return the shared weights: read-only views of the record's bytes."""
        return self._arrays

    @cached_property
    def _arrays(self) -> Arrays:
        return decode(self.record)


def read_update(
    node: Node, content: RecordDict, metrics: Mapping[str, Any], sent: SentWeights, max_value: float
) -> Update:
    """Return what a node replied, if its weights are like those that were sent; the reply is kept.

    Args:
        node: The node.
        content: Its reply.
        metrics: The numbers in it, checked (``fedshift_strategies.federation.checks.trained``).
        sent: The shared weights that it was sent.
        max_value: The largest absolute value of a floating-point number.

    Raises:
        Refused: If a name, shape, dtype or size is another, or they changed too much (:class:`SentWeights`), or the
            reply lacks a record.
    """
    record, knowledge = (array_record(content, name) for name in (ARRAYS, KNOWLEDGE))
    if record is None or knowledge is None:
        raise Refused(f"the reply lacks the record {ARRAYS!r} or {KNOWLEDGE!r}")
    numbers = {name: float(value) for name, value in metrics.items()}
    update = Update(node, record, decode(knowledge), int(metrics[NUM_EXAMPLES]), numbers)
    return replace(update, change=_check_like(update, sent, max_value))


@dataclass(frozen=True)
class Sifted:
    """The replies of a round.

    Attributes:
        updates: Those that may be averaged.
        problems: Why the others may not.
        wild: How many nodes came to numbers that are not finite or out of bounds.
        answers: How many answered.
    """

    updates: list[Update]
    problems: list[tuple[Node, str]]
    wild: int
    answers: int

    @property
    def gone_bad(self) -> bool:
        """Whether it is the model: half of the nodes that answered, or more, came to such numbers."""
        return self.wild > 0 and 2 * self.wild >= self.answers


def sift(
    replies: Iterable[Message],
    nodes: Iterable[Node],
    read: Callable[[Node, Message, SentWeights], Update],
    sent: SentWeights,
    max_update: float,
    features: Container[str],
    usual: dict[str, list[float]],
) -> Sifted:
    """Return the replies that may be averaged, and why the others may not; both by node index.

    Args:
        replies: One of each node at most; what is not used is let go.
        nodes: The nodes that were asked.
        read: Returns a reply as an update, or raises ``Refused``.
        sent: The weights that they were sent.
        max_update: How many times the median of a round a change or a contribution may be.
        features: Names of what is contributed of features.
        usual: As that of :func:`fedshift_strategies.federation.update_norms.out_of_proportion`.
    """
    waiting = {node.node_id: node for node in nodes}
    updates, problems, wild, answers = [], [], 0, 0
    for reply in replies:
        node = waiting.pop(reply.metadata.src_node_id)
        answers += 1
        try:
            updates.append(read(node, reply, sent))
        except Refused as refused:
            problems.append((node, str(refused)))
            # A node that finds such numbers itself answers with an error that says so.
            wild += isinstance(refused, Wild) or (reply.has_error() and NOT_FINITE in str(refused))
            checks.let_go(reply)
    problems += [(node, checks.NO_ANSWER) for node in waiting.values()]
    updates.sort(key=lambda update: update.node.index)
    moved, images = [update.change for update in updates], [update.num_examples for update in updates]
    strange = far_from_others(moved, images, sent.base, max_update)
    strange = out_of_proportion([update.compared for update in updates], max_update, features, usual) | strange
    problems += [(updates[place].node, reason) for place, reason in strange.items()]
    updates = [update for place, update in enumerate(updates) if place not in strange]
    return Sifted(updates, sorted(problems, key=lambda problem: problem[0].index), wild, answers)


def average(updates: list[Update], weights: list[float]) -> ArrayRecord:
    """Return the weighted average of the updates, in their order; the list is emptied on the way."""
    if len(weights) != len(updates):
        raise ValueError(f"{plural(len(weights), 'weight')} for {plural(len(updates), 'update')}")
    sums = RunningAverage()
    for weight in weights:
        sums.add(updates.pop(0).arrays(), weight)
    return encode(sums.result())


def mean_losses(updates: list[Update]) -> dict[str, float]:
    """Average each loss over the nodes that report it, by number of examples."""
    reported = {name for update in updates for name in update.metrics}
    names = sorted(name for name in reported if name == LOSS or name.startswith(LOSS_TERM))
    means = {}
    for name in names:
        having = [update for update in updates if name in update.metrics]
        share = shares([update.num_examples for update in having])
        means[name] = float(sum(s * u.metrics[name] for s, u in zip(share, having, strict=True)))
    return means


def num_bytes(content: RecordDict) -> int:
    """Return the bytes of the weights, of what a node begins from, and of the knowledge in a message."""
    records = (array_record(content, name) for name in (ARRAYS, START, KNOWLEDGE))
    return sum(len(array.data) for record in records if record is not None for array in record.values())


def _check_like(update: Update, sent: SentWeights, max_value: float) -> float:
    """Refuse weights whose names, shapes, types differ from those sent, that are not finite, too large or too far.

    Returns:
        How far they are from those that were sent.
    """
    if list(update.record) != list(sent.arrays):
        strange = sorted(set(update.record) ^ set(sent.arrays)) or ["another order"]
        raise Refused(f"weights do not match the model: {', '.join(strange[:3])}")
    arrays = update.arrays()
    for name, wanted in sent.arrays.items():
        array = arrays[name]
        if (array.shape, array.dtype) != (wanted.shape, wanted.dtype):
            raise Refused(
                f"{name} has shape {array.shape} and type {array.dtype}, expected {wanted.shape} and {wanted.dtype}"
            )
        check_numbers(name, array, max_value)
    return sent.check(arrays)


def by_reason(problems: list[tuple[Node, str]]) -> str:
    """Return the problems as one text, nodes with the same problem together."""
    nodes: dict[str, list[str]] = {}
    for node, reason in problems:
        nodes.setdefault(reason, []).append(str(node))
    return "; ".join(f"{', '.join(who)}: {reason}" for reason, who in nodes.items())
