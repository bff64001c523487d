"""Scores on the nodes' validation parts, where ``allocation.validation_fraction`` is above 0."""

import math
from collections.abc import Mapping
from typing import Any

from fedshift_app.features.validation.show import KEY, LOSS
from fedshift_core.wire.names import VALIDATION, VALIDATION_CORRECT, VALIDATION_COUNT, VALIDATION_LOSS_SUM
from fedshift_strategies.features.base import Asked, Evaluation, Known, Node, Range, Scoring, ServerFeature, Steps
from fedshift_strategies.federation import announced, checks
from fedshift_strategies.federation.checks import ANY_NUMBER, right_of
from fedshift_strategies.federation.evaluation import Tally


class Validation(ServerFeature):
    """Has each node score its validation part with a round's first questions. Sums are by domain."""

    def on_scores(self, scoring: Scoring) -> Steps:
        """Have each node that has a validation part score it with the first questions; write what comes of it.

        No loss where a node of the domain has none.
        """
        tally = Tally(self.run.domains)
        yield Asked(
            lambda node: {VALIDATION: True},
            bounds=_bounds,
            check=lambda metrics: right_of(metrics, VALIDATION_CORRECT, VALIDATION_COUNT),
            when=lambda: scoring.evaluation.is_first,
            take=lambda node, metrics: _add(tally, node, metrics, scoring.evaluation),
            everyone=True,
        )
        losses = {name: None if math.isnan(loss or 0.0) else loss for name, loss in tally.loss().items()}
        scoring.result.shown |= {KEY: tally.accuracy(), LOSS: losses}


def _bounds(node: Node) -> Known:
    """Return the numbers of a node that has a validation part."""
    if not node.num_validation:
        return {}
    count, loss_sum = Range(node.num_validation, node.num_validation), checks.loss_sum_of(node.num_validation)
    return {VALIDATION_CORRECT: ANY_NUMBER, VALIDATION_COUNT: count, VALIDATION_LOSS_SUM: loss_sum}


def _add(tally: Tally, node: Node, metrics: Mapping[str, Any], evaluation: Evaluation) -> None:
    """Add a node's numbers to those of its domain. A part far larger than those of the others is left out."""
    correct, count = right_of(metrics, VALIDATION_CORRECT, VALIDATION_COUNT)
    loss_sum = float(metrics.get(VALIDATION_LOSS_SUM, math.nan)) if count else 0.0  # nan: it was not finite
    # A node that tells of none, as its owner hides few, says nothing of how many are usual.
    numbers = [n for other in evaluation.nodes if other.domain == node.domain and (n := other.num_validation)]
    if node.num_validation <= announced.most_scored(numbers, evaluation.max_images):
        tally.add(node.domain, correct, count, loss_sum)
