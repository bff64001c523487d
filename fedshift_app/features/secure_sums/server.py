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
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Message

from fedshift_app.features.bn_statistics.server import statistics_of
from fedshift_app.features.secure_sums import Options
from fedshift_app.features.secure_sums.dealing import Added, Dealing, check_hides
from fedshift_app.features.secure_sums.replies import Keys, stated
from fedshift_app.features.secure_sums.show import KEY
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FederationError
from fedshift_core.limits import Refused
from fedshift_core.params import Params
from fedshift_core.plural import plural
from fedshift_core.secure import protocol
from fedshift_core.secure.group import ANSWERS, TRAINING
from fedshift_core.secure.layout import (
    BY_CLASS,
    COUNTS,
    KNOWLEDGE,
    LOSSES,
    REPORTS,
    WEIGHTS,
    Layout,
    Sum,
    layout_of,
    of_powers,
    range_of_answers,
    written,
)
from fedshift_core.secure.statement import LEAST_HOLDERS, summed
from fedshift_core.wire import names as wire
from fedshift_core.wire.records import encode
from fedshift_strategies import weighting
from fedshift_strategies.contributions import Declaration, check_contribution
from fedshift_strategies.features.base import Gather, Question, Scoring, ServerFeature, Steps, Training, Weigh
from fedshift_strategies.federation import checks
from fedshift_strategies.federation.context import RunContext
from fedshift_strategies.federation.evaluation import Asked
from fedshift_strategies.federation.nodes import Node
from fedshift_strategies.federation.update_norms import SentWeights
from fedshift_strategies.federation.updates import Sifted, Update, decode

log = logging.getLogger("fedshift")

TOGETHER = "all nodes of the secure sum"


@dataclass
class _Round:
    """A round on its way.

    Attributes:
        dealing: Its secure sum.
        sums: How each contribution is a sum, of those that nodes send.
        terms: Names of losses in the sum.
    """

    dealing: Dealing
    sums: dict[str, Sum]
    terms: tuple[str, ...]

    @property
    def largest(self) -> int:
        """The largest number of images that a node of the round states."""
        return max(statement.images for statement in self.dealing.statements)

    @property
    def has_rows(self) -> bool:
        """Whether nodes send rows of single classes."""
        return any(how in BY_CLASS for how in self.sums.values())

    @property
    def common(self) -> dict[str, Any]:
        """How vectors are made, alike for all nodes."""
        return {wire.SECURE_SUMS: written(self.sums), wire.SECURE_TERMS: list(self.terms)}


class SecureSums(ServerFeature):
    """Deals keys and shares among the nodes of a round, adds their masked vectors and unmasks the sum."""

    def __init__(self, name: str, run: RunContext, params: Params) -> None:
        super().__init__(name, run, params)
        self._round: _Round
        self._ahead: tuple[int, dict[int, Keys]] = 0, {}  # a round, and keys that nodes sent for it ahead
        self._unsummed: list[str] = []  # classes that are in no sum, as a line has said

    @property
    def _fewest(self) -> int:
        return Options.read(self.run.config).secure_sums_nodes

    @property
    def _range(self) -> float:
        return Options.read(self.run.config).secure_sums_range

    def describe(self, nodes: Sequence[Node]) -> Iterable[str]:
        """Return what the server learns in one line; raise ``FederationError`` if too few would hide each other."""
        self._check_number(self.run.number(len(nodes)))
        yield (
            f"federation.secure_sums=on: the server learns sums over {plural(self._fewest, 'node')} or more of "
            "weights, contributions and losses, and no node's own"
        )

    def _check_number(self, nodes: int) -> None:
        if nodes < self._fewest:
            raise FederationError(
                f"federation.secure_sums=on needs {plural(self._fewest, 'node')} or more in each round "
                f"(federation.secure_sums_nodes), found {nodes}"
            )

    # --- training ------------------------------------------------------------------------------------

    def on_round(self, training: Training) -> Steps:
        """Exchange keys and shares; the nodes that have dealt train.

        Raises:
            FederationError: If fewer remain than are needed, or nothing would hide single ones.
        """
        self._check_number(len(training.nodes))
        method, number, config = training.method, training.server_round, self.run.config
        alike = method.weighs_alike(method.params)
        self._check_weights(training.nodes, alike=alike)
        dealing = Dealing(number, TRAINING, config, training.query, training.leave_out, alike=alike)
        dealing.begin(training.nodes, self._ahead[1] if self._ahead[0] == number else None)
        terms = (wire.LOSS, *(wire.LOSS_TERM + term for term in self.run.model.terms))
        sums = method.sums(method.params)
        around = self._round = _Round(dealing, {name: sums[name] for name in method.expected()}, terms)
        if around.has_rows:
            self._check_classes(around)
        training.nodes = list(dealing.nodes.values())
        yield Asked(lambda node: {**dealing.options(node), **around.common})

    def gather(self, replies: list[Message], training: Training, sent: SentWeights, next: Gather) -> Sifted:
        """Return one update that stands for all nodes whose vectors arrived, and why others are not in it.

        Raises:
            FederationError: If too few vectors or shares arrived, or the sum is out of the run's bounds.
        """
        around = self._round
        dealing, layout = around.dealing, self._layout(sent.arrays, training)

        def read(node: Node, reply: Message) -> Mapping[str, Any]:
            return training.numbers(node, checks.opened(reply, (wire.ARRAYS, wire.KNOWLEDGE, wire.METRICS)))

        asked = {node.node_id: node for node in training.nodes}
        added = dealing.added(asked, replies, layout, wire.ARRAYS, read, training.observe)
        training.result.bytes_up += added.total.nbytes * len(added.nodes)
        common = [str(around.common[key]) for key in protocol.COMMON]
        total = dealing.unmasked(added, protocol.digest_of(sent.arrays, *common), rows=around.has_rows)
        try:
            update = self._update(layout.values(total, len(added.nodes)), added.nodes, sent, training)
        except Refused as refused:
            raise FederationError(
                f"round {training.server_round}: {TOGETHER}: {refused}; a sum does not tell whose fault it is"
            ) from None
        self._ahead = training.server_round + 1, dealing.ahead
        training.result.shown[KEY] = self._shown(dealing, added, layout.error(self._range))
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
        number, config = scoring.server_round, self.run.config
        dealing = Dealing(number, ANSWERS, config, scoring.query, scoring.leave_out, alike=False)
        try:
            dealing.begin([*question.work])
        except FederationError as error:
            raise FederationError(f"round {number}: {error}") from None
        asked = {node: question.work[node] for node in dealing.nodes.values()}
        replies = scoring.ask(asked, question.options, {node: dealing.options(node) for node in asked})
        layout = of_powers(question.sizes, question.powers, self._range, dealing.number)

        def read(node: Node, reply: Message) -> Mapping[str, Any]:
            metrics = checks.metrics_of(checks.opened(reply, (wire.KNOWLEDGE, wire.METRICS)))
            images = question.work[node]
            if wire.NUM_EXAMPLES not in metrics:
                raise Refused(f"the reply lacks {wire.NUM_EXAMPLES!r}")
            checks.check_numbers_of(metrics, {wire.NUM_EXAMPLES: checks.Range(images, images)})
            return metrics

        by_id = {node.node_id: node for node in asked}
        added = dealing.added(by_id, replies, layout, wire.KNOWLEDGE, read, scoring.observe)
        for node, reason in added.problems:
            lost = checks.is_lost(reason)
            scoring.leave_out(node, f"secure sums: could not answer: {reason}", lost=lost)
        total = dealing.unmasked(added, protocol.digest_of(decode(scoring.weights)))
        self._ahead = number + 1, dealing.ahead  # those that came with the first sum are wiped
        weight = dealing.weight(added.nodes)
        answers = self._shown(dealing, added, layout.error(range_of_answers(self._range)))
        shown = scoring.result.shown
        shown[KEY] = shown.get(KEY, {}) | {ANSWERS: answers}
        sums = layout.values(total, len(added.nodes))
        return {name: value / weight for name, value in sums.items()}

    # --- parts -------------------------------------------------------------------------------------

    def _check_weights(self, nodes: list[Node], *, alike: bool) -> None:
        """Refuse a round before anything is asked for, if nodes would not hide each other in one of its sums."""
        config, purposes = self.run.config, [TRAINING]
        if wire.RETAKEN in statistics_of(self.run):
            purposes.append(ANSWERS)
        for purpose in purposes:
            factors = weighting.factors(config, [*map(stated, nodes)], purpose, alike=alike)
            check_hides(config, factors, purpose)

    def _check_classes(self, around: _Round) -> None:
        """Say which classes are in no sum; refuse a round in which none is."""
        names = self.run.config.dataset.known().classes
        kept = summed(around.dealing.statements)
        unsummed = [name for name, is_summed in zip(names, kept, strict=True) if not is_summed]
        few = f"fewer than {plural(LEAST_HOLDERS, 'node')} of the round"
        if not kept.any():
            raise FederationError(
                f"federation.secure_sums=on: each class is held by {few}, so that nothing of it may be summed, and the "
                "method would be FedAvg; what helps: more nodes with the same classes, or a method that needs no rows "
                "by class"
            )
        if unsummed and unsummed != self._unsummed:
            self._unsummed = unsummed
            log.info("secure sums: rows of %s are in no sum: %s hold them", ", ".join(unsummed), few)

    def _update(self, sums: Arrays, arrived: list[Node], sent: SentWeights, training: Training) -> Update:
        """Return the update that stands for the nodes, checked as that of a node is."""
        federation, declared = self.run.config.federation, training.method.expected()
        weight = self._round.dealing.weight(arrived)
        arrays: Arrays = {}
        for name, base in sent.arrays.items():
            moved = base.astype(np.float64) + sums[WEIGHTS + name] / weight
            arrays[name] = (moved if base.dtype.kind == "f" else np.rint(moved)).astype(base.dtype)
        knowledge = self._knowledge(sums, arrived, declared)
        announced = np.array([node.class_counts for node in arrived], np.int64).sum(axis=0).tolist()
        check_contribution(knowledge, declared, self.run.sizes, announced, federation.max_value)
        metrics = {
            name.removeprefix(LOSSES): float(value) / float(sums[REPORTS + name.removeprefix(LOSSES)])
            for name, value in sums.items()
            if name.startswith(LOSSES) and sums[REPORTS + name.removeprefix(LOSSES)] > 1e-3
        }
        images = sum(node.num_examples for node in arrived)
        return Update(
            arrived[0], encode(arrays), knowledge, images, metrics, sent.check(arrays), tuple(arrived)
        )  # fmt: skip

    def _knowledge(self, sums: Arrays, arrived: list[Node], declared: Declaration) -> Arrays:
        """Return the mean of each contribution, as its kind of sum says."""
        counts = sums.get(KNOWLEDGE + COUNTS, np.zeros(0))
        knowledge: Arrays = {}
        for name in declared:
            total, how = sums[KNOWLEDGE + name], self._round.sums[name]
            if name == COUNTS:
                knowledge[name] = total
                continue
            if how in ("images", "nodes"):
                rows = counts / self._round.largest if how == "images" else counts.astype(np.float64)
                rows = rows.reshape(-1, *(1,) * (total.ndim - 1))
                total = np.where(rows > 0, total / np.where(rows > 0, rows, 1), 0)
            elif how == "each":
                total = total / len(arrived)
            knowledge[name] = total.astype(np.float32)
        return knowledge

    def _layout(self, weights: Mapping[str, Any], training: Training) -> Layout:
        sizes, declared = self.run.sizes, training.method.expected()
        for name, shape in declared.items():
            if any(isinstance(part, str) and part not in sizes for part in shape):
                raise FederationError(f"secure sums: how large {name} is, each node decides; a sum needs the same size")
        shapes = {
            name: tuple(sizes[part] if isinstance(part, str) else part for part in shape)
            for name, shape in declared.items()
        }
        return layout_of(weights, shapes, self._round.terms, self._range, self._round.dealing.number)

    def _shown(self, dealing: Dealing, added: Added, error: float) -> dict[str, Any]:
        """Return what the round's line says of a sum, by the error of one node's number."""
        return {
            "nodes": len(added.nodes), "threshold": dealing.threshold,
            "error": len(added.nodes) * error / dealing.weight(added.nodes),
            "bytes_up": dealing.bytes_up, "bytes_down": dealing.bytes_down,
        }  # fmt: skip
