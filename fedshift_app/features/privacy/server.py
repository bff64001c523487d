"""What the server must know of the noise that nodes add (``privacy``), and what they spend. No epsilon is averaged."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedshift_app.features.privacy.show import KEY
from fedshift_core.dp_accounting import Spending, spending_of
from fedshift_core.limits import Refused
from fedshift_core.plural import plural
from fedshift_core.wire.names import EPSILON
from fedshift_strategies.features.base import ServerFeature, Training
from fedshift_strategies.federation.checks import Known, Range
from fedshift_strategies.federation.context import RoundResult
from fedshift_strategies.federation.nodes import Node

log = logging.getLogger("fedshift")

#: The largest epsilon that a node may report: that of a federation without noise to speak of.
MOST_EPSILON = 1e12


class Privacy(ServerFeature):
    """Allows for the noise of honest nodes, and keeps what each says that it has spent."""

    _spent: dict[str, float]
    _trained: dict[str, int]
    _deviation = 0.0

    def description(self) -> str:
        """Return a line with what the run does, and of ``local-dp`` with the largest epsilon that it spends."""
        privacy, rounds = self.run.config.privacy, self.run.rounds + self.run.repeated
        if privacy.of_images:
            validates = self.run.config.allocation.validation_fraction > 0
            return (
                f"privacy: each image's gradient is cut to norm {privacy.clipping_norm:g} and each step's sum is given "
                f"noise; epsilon of each node is said after each round, at delta {privacy.delta:g}"
                + ("; which images are validation images counts as fixed" if validates else "")
            )
        if not privacy.of_updates:
            return ""
        return (
            f"privacy: each node's update is cut to norm {privacy.clipping_norm:g} and given noise of standard "
            f"deviation {privacy.noise:.3g}; after {plural(rounds, 'round')}{self._again} epsilon is "
            f"{privacy.spent(rounds):.3g} at delta {privacy.delta:g}"
        )

    def description_of(self, nodes: Sequence[Node]) -> tuple[str, ...]:
        """Return a line for each node with its sampling rate, steps, noise and the epsilon of the whole run.

        Nodes with the same numbers share one. A target that repeated rounds exceed is named.
        """
        privacy = self.run.config.privacy
        if not (privacy.of_images and self.run.rounds):
            return ()
        if privacy.target_epsilon is not None and self.run.repeated:
            log.warning(
                "privacy.target_epsilon=%g is for %s: %s may have left nodes more than once and spend again, so that "
                "the run will exceed it", privacy.target_epsilon, plural(self.run.rounds, "round"),
                plural(self.run.repeated, "round"),
            )  # fmt: skip
        by_images: dict[int, list[int]] = {}
        for node in nodes:
            by_images.setdefault(node.num_examples, []).append(node.index)
        return tuple(self._line(images, indices) for images, indices in sorted(by_images.items()))

    def _line(self, images: int, indices: Sequence[int]) -> str:
        spends, rounds = self._spending(images), self.run.rounds + self.run.repeated
        nodes = f"node{'s' * (len(indices) > 1)} {', '.join(map(str, indices))}"
        prototypes = f", {spends.prototype_noise:.3g} on prototypes" if spends.prototype_noise else ""
        return (
            f"privacy of {nodes}: {plural(images, 'image')}, sampling rate {spends.sampling_rate:.3g}, "
            f"{plural(spends.steps, 'step')} a "
            f"round, noise multiplier {spends.noise_multiplier:.3g}{prototypes}; after {plural(rounds, 'round')}"
            f"{self._again} epsilon is {spends.epsilon(rounds):.3g} at delta {spends.delta:g}"
        )

    @property
    def _again(self) -> str:
        """Which of the rounds are repeated, in words."""
        return f", {self.run.repeated} of them repeated," if self.run.repeated else ""

    def start_round(self) -> None:
        """Begin a round, in which no node has said anything yet."""
        self._spent, self._trained = {}, {}

    def train_options(self, node: Node, training: Training) -> dict[str, Any]:
        """Note that the node trains and how much noise its weights may have; it is sent nothing."""
        if self.run.config.privacy.of_images:
            self._trained[str(node.index)] = node.num_examples
            self._deviation = max(self._deviation, self._deviation_of(self._spending(node.num_examples)))
        return {}

    def train_bounds(self, node: Node, training: Training) -> Known:
        """Return the range of the epsilon that a node has spent."""
        return {EPSILON: Range(0, MOST_EPSILON, whole=False)} if self.run.config.privacy.of_images else {}

    def read_train(self, metrics: Mapping[str, Any]) -> None:
        """Refuse a reply to ``dp-sgd`` without an epsilon."""
        if self.run.config.privacy.of_images and EPSILON not in metrics:
            raise Refused(f"{EPSILON} is missing: the node did not train with privacy.name=dp-sgd")

    def observe(self, node: Node, metrics: Mapping[str, Any]) -> None:
        """Keep the epsilon of a node."""
        if EPSILON in metrics:
            self._spent[str(node.index)] = float(metrics[EPSILON])

    def finish_round(self, result: RoundResult) -> None:
        """Write what each node that was to train has spent so far.

        Of one whose answer is not used it is what it would have spent: the answer may have left it. A node does not
        know of rounds that are repeated.
        """
        spent = dict(self._spent)
        for index, images in self._trained.items():
            if index not in spent or self.run.repeated:
                bound = self._spending(images).epsilon(result.server_round + self.run.repeated)
                spent[index] = max(spent.get(index, 0.0), bound)
        if spent:
            spent = dict(sorted(spent.items(), key=lambda item: int(item[0])))
            result.shown[KEY] = {"epsilon": spent, "delta": self.run.config.privacy.delta}

    def noise(self) -> float:
        """Return the standard deviation of the noise on each weight."""
        privacy = self.run.config.privacy
        return privacy.noise if privacy.of_updates else self._deviation

    def _spending(self, images: int) -> Spending:
        return spending_of(self.run.config, images, prototypes=self.run.model.prototypes)

    def _deviation_of(self, spends: Spending) -> float:
        """Return a bound on the standard deviation of the noise that a round's steps leave on each weight.

        Of SGD with momentum m, each step's noise moves a weight by at most rate / (1 - m) times it; a step of Adam is
        about as long as its rate, whatever the gradient.
        """
        train, privacy = self.run.config.train, self.run.config.privacy
        if train.optimizer != "sgd":
            return train.lr * math.sqrt(spends.steps)
        of_step = spends.noise_multiplier * privacy.clipping_norm / (spends.sampling_rate * spends.images)
        return train.lr / (1 - train.momentum) * of_step * math.sqrt(spends.steps)
