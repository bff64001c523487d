"""Noise that nodes add (``privacy``), as the server allows for it, and what they spend. No epsilon is averaged."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedshift_app.features.privacy import Options
from fedshift_app.features.privacy.show import KEY
from fedshift_core.dp_accounting import Spending, spending
from fedshift_core.limits import Refused
from fedshift_core.plural import plural
from fedshift_core.wire.names import EPSILON
from fedshift_strategies.features.base import Asked, Node, Range, ServerFeature, Steps, Training

log = logging.getLogger("fedshift")

#: The largest epsilon that a node may report: that of a federation without noise to speak of.
MOST_EPSILON = 1e12


class Privacy(ServerFeature):
    """Allows for the noise of honest nodes, and keeps what each says that it has spent."""

    _deviation = 0.0

    def describe(self, nodes: Sequence[Node]) -> Iterable[str]:
        """Return a line with what the run does, and of ``local-dp`` with the largest epsilon that it spends.

        Of ``dp-sgd`` there is a line for each node with its sampling rate, steps, noise and the epsilon of the whole
        run; nodes with the same numbers share one. A target that repeated rounds exceed is named.
        """
        config, repeated = self.run.config, self.run.repeated
        privacy, rounds = config.privacy, self.run.rounds + repeated
        after = f"after {plural(rounds, 'round')}{f', {repeated} of them repeated,' if repeated else ''} epsilon is"
        if not privacy.of_images:
            yield (
                f"privacy: each node's update is cut to norm {privacy.clipping_norm:g} and given noise of standard "
                f"deviation {privacy.noise:.3g}; {after} {privacy.spent(rounds):.3g} at delta {privacy.delta:g}"
            )
            return
        validates = config.allocation.validation_fraction > 0
        yield (
            f"privacy: each image's gradient is cut to norm {privacy.clipping_norm:g} and each step's sum is given "
            f"noise; epsilon of each node is said after each round, at delta {privacy.delta:g}"
            + ("; which images are validation images counts as fixed" if validates else "")
        )
        if not self.run.rounds:
            return
        if privacy.target_epsilon is not None and repeated:
            yield (
                f"privacy.target_epsilon={privacy.target_epsilon:g} is for {plural(self.run.rounds, 'round')}: "
                f"{plural(repeated, 'round')} may have left nodes more than once and spend again, so that the run will "
                "exceed it"
            )
        for images in sorted({node.num_examples for node in nodes}):
            spends, alike = self._spending(images), [str(node.index) for node in nodes if node.num_examples == images]
            prototypes = f", {spends.prototype_noise:.3g} on prototypes" if spends.prototype_noise else ""
            yield (
                f"privacy of node{'s' * (len(alike) > 1)} {', '.join(alike)}: {plural(images, 'image')}, sampling rate "
                f"{spends.sampling_rate:.3g}, {plural(spends.steps, 'step')} a round, noise multiplier "
                f"{spends.noise_multiplier:.3g}{prototypes}; {after} {spends.epsilon(rounds):.3g} at delta "
                f"{spends.delta:g}"
            )

    def on_round(self, training: Training) -> Steps:
        """Allow for the noise of the nodes that train, and write what each has spent.

        Raises:
            Refused: If a reply to ``dp-sgd`` lacks an epsilon.
        """
        privacy = self.run.config.privacy
        if not privacy.of_images:
            training.noise = lambda: privacy.noise
            yield None
            return
        spent: dict[str, float] = {}

        def noise() -> float:
            each = (self._deviation_of(self._spending(node.num_examples)) for node in training.nodes)
            self._deviation = max(self._deviation, *each)
            return self._deviation

        def keep(node: Node, metrics: Mapping[str, Any]) -> None:
            if EPSILON in metrics:
                spent[str(node.index)] = float(metrics[EPSILON])

        training.noise = noise
        training.observers.append(keep)
        yield Asked(bounds=lambda node: {EPSILON: Range(0, MOST_EPSILON, whole=False)}, check=_check)
        self._write(training, spent)

    def _write(self, training: Training, spent: dict[str, float]) -> None:
        """Write what each node that was to train has spent so far.

        Of one whose answer is not used it is what it would have spent: the answer may have left it. A node does not
        know of rounds that are repeated.
        """
        for node in training.nodes:
            index = str(node.index)
            if index not in spent or self.run.repeated:
                bound = self._spending(node.num_examples).epsilon(training.server_round + self.run.repeated)
                spent[index] = max(spent.get(index, 0.0), bound)
        ordered = dict(sorted(spent.items(), key=lambda item: int(item[0])))
        training.result.shown[KEY] = {"epsilon": ordered, "delta": self.run.config.privacy.delta}

    def _spending(self, images: int) -> Spending:
        config, prototypes = self.run.config, self.run.model.prototypes
        train = config.train
        return spending(config.privacy, images, train.batch_size, train.epochs, config.rounds, prototypes=prototypes)

    def _deviation_of(self, spends: Spending) -> float:
        """Return a bound on the standard deviation of the noise that a round's steps leave on each weight.

        Of SGD with momentum m, each step's noise moves a weight by at most rate / (1 - m) times it; a step of Adam is
        about as long as its rate, whatever the gradient.
        """
        train, norm = self.run.config.train, Options.read(self.run.config).clipping_norm
        moves: float = train.lr
        if train.optimizer == "sgd":
            moves = (
                moves / (1 - train.momentum) * (spends.noise_multiplier * norm / (spends.sampling_rate * spends.images))
            )
        return moves * math.sqrt(spends.steps)


def _check(metrics: Mapping[str, Any]) -> None:
    if EPSILON not in metrics:
        raise Refused(f"{EPSILON} is missing: the node did not train with privacy.name=dp-sgd")
