"""Sums of which the server sees no part (``federation.secure_sums``): what is summed, and what becomes of the sums.

The protocol is that of :mod:`fedshift_core.secure.protocol`, its numbers those of :mod:`fedshift_core.secure.layout`;
keys, shares and masks of one sum are in :mod:`fedshift_app.features.secure_sums.dealing`.

**Training.** A node sends one vector: the change of its weights, times its weight in the average over the largest
weight of the round; what it contributes; its losses, by its weight. The server learns the sum, and makes of it
one update, which stands for all nodes whose vectors arrived; methods then merge that. Rows of a class that too few
nodes of the round hold are not in it: the class is one that no node holds.

**Answers.** What another feature asks about the averaged weights, and need only know as means over all images, goes
through a second sum of the round, with keys of its own. A node multiplies its means by its share of images.

Weights of nodes are those of the run's rule for what each announced before round 1, and states in each round. Nodes
that fail at a stage are left out; a round in which fewer than t nodes remain, or by their weights too few, is refused,
which ends the run. It may be resumed.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from fedshift_app.features.bn_statistics.server import statistics_of
from fedshift_app.features.secure_sums import KEY, Options
from fedshift_app.features.secure_sums.dealing import Added, Dealing, hiding_factors, stated
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FederationError
from fedshift_core.limits import Refused
from fedshift_core.limits import largest as largest_of
from fedshift_core.plural import plural
from fedshift_core.secure import layout, protocol
from fedshift_core.secure.group import ANSWERS, TRAINING
from fedshift_core.secure.layout import COUNTS, KNOWLEDGE, LOSSES, REPORTS, WEIGHTS, Sum
from fedshift_core.secure.statement import LEAST_HOLDERS, largest, summed
from fedshift_core.wire import names as wire
from fedshift_core.wire.records import encode
from fedshift_strategies.contributions import Own, Whole, check_contribution
from fedshift_strategies.features.base import (
    Asked,
    Gather,
    Node,
    Question,
    Scoring,
    SentWeights,
    ServerFeature,
    Sifted,
    Steps,
    Training,
    Update,
    Weigh,
)
from fedshift_strategies.federation import checks
from fedshift_strategies.federation.updates import decode

log = logging.getLogger("fedshift")

TOGETHER = "all nodes of the secure sum"


class SecureSums(ServerFeature):
    """Deals keys and shares among the nodes of a round, adds their masked vectors and unmasks the sum."""

    _dealing: Dealing  # of the round's training
    _sums: dict[str, Sum]  # how each contribution is a sum
    _unsummed: Sequence[str] = ()  # classes that are in no sum, as a line has said

    @property
    def _options(self) -> Options:
        return Options.read(self.run.config)

    @property
    def _common(self) -> dict[str, Any]:
        """The form of vectors, alike for all nodes."""
        terms = [wire.LOSS, *(wire.LOSS_TERM + term for term in self.run.model.terms)]
        return {wire.SECURE_SUMS: layout.written(self._sums), wire.SECURE_TERMS: terms}

    def describe(self, nodes: Sequence[Node]) -> Iterable[str]:
        """Return what the server learns in one line; raise ``FederationError`` if too few would hide each other."""
        self._check_number(self.run.number(len(nodes)))
        yield (
            f"federation.secure_sums=on: the server learns sums over {plural(self._options.secure_sums_nodes, 'node')} "
            "or more of weights, contributions and losses, and no node's own"
        )

    def _check_number(self, nodes: int) -> None:
        fewest = self._options.secure_sums_nodes
        if nodes < fewest:
            raise FederationError(
                f"federation.secure_sums=on needs {plural(fewest, 'node')} or more in each round "
                f"(federation.secure_sums_nodes), found {nodes}"
            )

    # --- training ------------------------------------------------------------------------------------

    def on_round(self, training: Training) -> Steps:
        """Exchange keys and shares; the nodes that have dealt train.

        Raises:
            FederationError: If fewer remain than are needed, or nothing would hide single ones.
        """
        self._check_number(len(training.nodes))
        method, config, purposes = training.method, self.run.config, [TRAINING]
        alike = method.weighs_alike(method.params)
        if wire.RETAKEN in statistics_of(self.run):
            purposes.append(ANSWERS)
        for purpose in purposes:  # before anything is asked for
            hiding_factors(config, [*map(stated, training.nodes)], purpose, alike=alike)
        self._dealing = Dealing(training.server_round, TRAINING, config, alike, training.query, training.leave_out)
        self._dealing.begin(training.nodes)
        sums = method.sums(method.params)
        self._sums = {name: sums[name] for name in method.expected()}
        if layout.has_rows(self._sums):
            self._check_classes()
        training.nodes = list(self._dealing.nodes.values())
        yield Asked(lambda node: {**self._dealing.options(node), **self._common})

    def gather(self, replies: list[Message], training: Training, sent: SentWeights, next: Gather) -> Sifted:
        """Return one update that stands for all nodes whose vectors arrived, and why others are not in it.

        Raises:
            FederationError: If too few vectors or shares arrived, or the sum is out of the run's bounds.
        """
        dealing, vectors = self._dealing, self._layout(sent.arrays, training)

        def read(node: Node, reply: Message) -> Mapping[str, Any]:
            return training.numbers(node, checks.opened(reply, (wire.ARRAYS, wire.KNOWLEDGE, wire.METRICS)))

        asked = {node.node_id: node for node in training.nodes}
        added = dealing.added(asked, replies, vectors, wire.ARRAYS, read, training.observe)
        training.result.bytes_up += added.total.nbytes * len(added.nodes)
        common = [str(self._common[key]) for key in protocol.COMMON]
        total = dealing.unmasked(added, protocol.digest_of(sent.arrays, *common))
        try:
            update = self._update(vectors.values(total, len(added.nodes)), added.nodes, sent, training)
        except Refused as refused:
            raise FederationError(
                f"round {training.server_round}: {TOGETHER}: {refused}; a sum does not tell whose fault it is"
            ) from None
        training.result.shown[KEY] = _shown(dealing, added, vectors.error(self._options.secure_sums_range))
        return Sifted([update], added.problems, 0, len(replies))

    def weights(self, updates: list[Update], training: Training, next: Weigh) -> list[float]:
        """Return 1 for the one update that stands for a sum."""
        return [1.0]

    # --- answers -------------------------------------------------------------------------------------

    def means(self, question: Question, scoring: Scoring) -> Arrays:
        """Return what came of a question by a second sum of the round; a node weighs by its images.

        Raises:
            FederationError: If too few nodes answer.
        """
        number, most = scoring.server_round, self._options.secure_sums_range
        dealing = Dealing(number, ANSWERS, self.run.config, False, scoring.query, scoring.leave_out)
        try:
            dealing.begin([*question.work])
        except FederationError as error:
            raise FederationError(f"round {number}: {error}") from None
        asked = {node: question.work[node] for node in dealing.nodes.values()}
        replies = scoring.ask(asked, question.options, {node: dealing.options(node) for node in asked})
        vectors = layout.of_powers(question.sizes, question.powers, most, len(dealing.group.nodes))

        def read(node: Node, reply: Message) -> Mapping[str, Any]:
            metrics = checks.metrics_of(checks.opened(reply, (wire.KNOWLEDGE, wire.METRICS)))
            if wire.NUM_EXAMPLES not in metrics:
                raise Refused(f"the reply lacks {wire.NUM_EXAMPLES!r}")
            checks.check_numbers_of(metrics, {wire.NUM_EXAMPLES: checks.Range(asked[node], asked[node])})
            return metrics

        by_id = {node.node_id: node for node in asked}
        added = dealing.added(by_id, replies, vectors, wire.KNOWLEDGE, read, scoring.observe)
        for node, reason in added.problems:
            scoring.leave_out(node, f"secure sums: could not answer: {reason}", lost=checks.is_lost(reason))
        total = dealing.unmasked(added, protocol.digest_of(decode(scoring.weights)))
        answers = _shown(dealing, added, vectors.error(layout.range_of_answers(most)))
        scoring.result.shown[KEY] = scoring.result.shown.get(KEY, {}) | {ANSWERS: answers}
        weight = dealing.weight(added.nodes)
        return {name: value / weight for name, value in vectors.values(total, len(added.nodes)).items()}

    # --- parts -------------------------------------------------------------------------------------

    def _check_classes(self) -> None:
        """Say which classes are in no sum; refuse a round in which none is."""
        kept = summed(self._dealing.group.statements)
        few = f"fewer than {plural(LEAST_HOLDERS, 'node')} of the round"
        if not kept.any():
            raise FederationError(
                f"federation.secure_sums=on: each class is held by {few}, so that nothing of it may be summed, and the "
                "method would be FedAvg; what helps: more nodes with the same classes, or a method that needs no rows "
                "by class"
            )
        names = self.run.config.dataset.known().classes
        unsummed = [name for name, is_summed in zip(names, kept, strict=True) if not is_summed]
        if unsummed and unsummed != self._unsummed:  # each time that they are others
            self._unsummed = unsummed
            log.info("secure sums: rows of %s are in no sum: %s hold them", ", ".join(unsummed), few)

    def _update(self, sums: Arrays, arrived: list[Node], sent: SentWeights, training: Training) -> Update:
        """Return the update that stands for the nodes, checked as that of a node is."""
        declared, weight = training.method.expected(), self._dealing.weight(arrived)
        arrays: Arrays = {}
        for name, base in sent.arrays.items():
            moved = base.astype(np.float64) + sums[WEIGHTS + name] / weight
            arrays[name] = (moved if base.dtype.kind == "f" else np.rint(moved)).astype(base.dtype)
        knowledge = {name: self._mean(name, sums, len(arrived)) for name in declared}
        announced = np.array([node.class_counts for node in arrived], np.int64).sum(axis=0).tolist()
        check_contribution(knowledge, declared, self.run.sizes, announced, self.run.config.federation.max_value)
        most = self._options.secure_sums_range
        for name, array in training.method.comparable(knowledge, arrived).items():  # floats each node holds against it
            if isinstance(declared[name], Whole) and (size := largest_of(array)) > most:
                raise Refused(
                    f"{name} comes to {size:.3g} for an image, allowed is {most:g} at most "
                    "(federation.secure_sums_range)"
                )
        metrics = {
            term: float(sums[LOSSES + term]) / float(sums[REPORTS + term])
            for term in self._common[wire.SECURE_TERMS]
            if sums[REPORTS + term] > 1e-3
        }
        images = sum(node.num_examples for node in arrived)
        return Update(arrived[0], encode(arrays), knowledge, images, metrics, sent.check(arrays), tuple(arrived))

    def _mean(self, name: str, sums: Arrays, nodes: int) -> NDArray[Any]:
        """Return the mean of a contribution, as its kind of sum says."""
        total, how = sums[KNOWLEDGE + name], self._sums[name]
        if total.dtype.kind == "i":
            return total
        if how in layout.BY_CLASS and how not in layout.UNDIVIDED:
            counts = sums.get(KNOWLEDGE + COUNTS, np.zeros(0))
            rows = counts / largest(self._dealing.group.statements) if how == "images" else counts.astype(np.float64)
            rows = rows.reshape(-1, *(1,) * (total.ndim - 1))
            total = np.where(rows > 0, total / np.where(rows > 0, rows, 1), 0)
        elif how == "each":
            total = total / nodes
        return total.astype(np.float32)

    def _layout(self, weights: Mapping[str, Any], training: Training) -> layout.Layout:
        declared, shapes = training.method.expected(), dict[str, tuple[int, ...]]()
        own: dict[str, int] = {part: part.most for s in declared.values() for part in s if isinstance(part, Own)}
        sizes = own | self.run.sizes
        for name, shape in declared.items():
            if any(isinstance(part, str) and part not in sizes for part in shape):
                raise FederationError(f"secure sums: how large {name} is, each node decides; a sum needs the same size")
            shapes[name] = tuple(sizes[part] if isinstance(part, str) else part for part in shape)
        terms, most = self._common[wire.SECURE_TERMS], self._options.secure_sums_range
        whole = [name for name, shape in declared.items() if isinstance(shape, Whole)]
        return layout.layout_of(weights, shapes, terms, most, len(self._dealing.group.nodes), whole)


def _shown(dealing: Dealing, added: Added, error: float) -> dict[str, Any]:
    """Return what the round's line says of a sum, by the error of one node's number."""
    return {
        "nodes": len(added.nodes),
        "threshold": dealing.group.threshold,
        "error": len(added.nodes) * error / dealing.weight(added.nodes),
        "bytes_up": dealing.bytes_up,
        "bytes_down": dealing.bytes_down,
    }
