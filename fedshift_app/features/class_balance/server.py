"""Numbers of images by class of all nodes, for losses that weigh classes (``train.class_counts=federation``).

They are sums of what nodes have said of themselves before round 1.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_core.limits import some
from fedshift_core.wire.names import CLASS_TOTALS
from fedshift_strategies.features.base import ServerFeature, Training
from fedshift_strategies.federation import announced
from fedshift_strategies.federation.evaluation import Evaluation
from fedshift_strategies.federation.nodes import Node

MOST_NAMED = 10  # classes of which the log shows numbers


def totals(nodes: Sequence[Node], factor: float) -> NDArray[np.float64]:
    """Return the training images of all nodes by class, (C,).

    Args:
        nodes: All nodes, at least one.
        factor: How many times the median number of images a node counts as having at most.
    """
    most = announced.most_images(nodes, factor)
    total = np.zeros(len(nodes[0].class_counts))
    for node in (announced.weighed_node(node, most) for node in nodes):
        total += node.class_counts
    return total


class ClassBalance(ServerFeature):
    """Sends nodes the numbers of images of all nodes, where the run asks for it."""

    _sent: list[float] | None = None

    def description_of(self, nodes: Sequence[Node]) -> tuple[str, ...]:
        """Return which numbers nodes are sent."""
        if not self.run.config.train.asks_federation:
            return ()
        each = [f"{number:g}" for number in self._totals(nodes)]
        return (f"classes are weighed by the images of all nodes, which all are sent: {some(each, MOST_NAMED)}",)

    def train_options(self, node: Node, training: Training) -> dict[str, Any]:
        """Send the numbers."""
        if not self.run.config.train.asks_federation:
            return {}
        self._sent = self._totals(training.nodes)
        return {CLASS_TOTALS: self._sent}

    def score_options(self, evaluation: Evaluation) -> dict[str, Any]:
        """Send those of the last training: what adapts a model before a score may train it."""
        if not self.run.config.train.asks_federation:
            return {}
        return {CLASS_TOTALS: self._totals(evaluation.nodes) if self._sent is None else self._sent}

    def _totals(self, nodes: Sequence[Node]) -> list[float]:
        return [float(number) for number in totals(nodes, self.run.config.federation.max_images)]
