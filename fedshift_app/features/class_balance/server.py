"""Numbers of images by class of all nodes, for losses that weigh classes (``train.class_counts=federation``).

They are sums of what nodes have said of themselves before round 1.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedshift_core.wire.names import CLASS_TOTALS
from fedshift_strategies.features.base import Asked, Node, Scoring, ServerFeature, Steps, Training
from fedshift_strategies.federation import announced


def totals(nodes: Sequence[Node], factor: float) -> NDArray[np.float64]:
    """Return the training images of all nodes by class, (C,).

    Args:
        nodes: All nodes, at least one.
        factor: How many times the median number of images a node counts as having at most.
    """
    most = announced.most_images(nodes, factor)
    counts = np.array([announced.weighed_node(node, most).class_counts for node in nodes], np.float64)
    return np.asarray(counts.sum(axis=0))


class ClassBalance(ServerFeature):
    """Sends nodes the numbers of images of all nodes, where the run asks for it."""

    _sent: list[float] | None = None

    def on_round(self, training: Training) -> Steps:
        """Send the numbers."""
        return self._steps(self._totals(training.all_nodes))

    def on_scores(self, scoring: Scoring) -> Steps:
        """Send those of the last training: what adapts a model before a score may train it."""
        return self._steps(self._sent or self._totals(scoring.all_nodes))

    def _steps(self, sent: list[float]) -> Steps:
        self._sent = sent
        yield Asked(lambda node: {CLASS_TOTALS: sent} if self.run.config.train.asks_federation else {})

    def _totals(self, nodes: Sequence[Node]) -> list[float]:
        return [*map(float, totals(nodes, self.run.config.federation.max_images))]
