"""Scores on the nodes' validation parts, where ``allocation.validation_fraction`` is above 0."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import RecordDict

from fedshift_app.features.validation.show import KEY, LOSS
from fedshift_core.wire.names import VALIDATION, VALIDATION_CORRECT, VALIDATION_COUNT, VALIDATION_LOSS_SUM
from fedshift_core.wire.scores import Part
from fedshift_strategies.features.base import ServerFeature
from fedshift_strategies.federation import announced, checks
from fedshift_strategies.federation.checks import ANY_COUNT, Known, Range, right_of
from fedshift_strategies.federation.context import RoundResult
from fedshift_strategies.federation.evaluation import Answer, Evaluation, Tally
from fedshift_strategies.federation.nodes import Node


class Validation(ServerFeature):
    """Has each node score its validation part with a round's first questions. Sums are by domain."""

    _tally: Tally | None = None

    @property
    def _is_on(self) -> bool:
        return self.run.config.allocation.validation_fraction > 0

    def asks_all(self) -> bool:
        """Tell whether all nodes are asked: each that has a validation part scores it."""
        return self._is_on

    def score_options(self, evaluation: Evaluation) -> dict[str, Any]:
        """Ask for the validation part with the first questions."""
        if not (self._is_on and evaluation.is_first):
            return {}
        self._tally = Tally(self.run.domains)
        return {VALIDATION: True}

    def score_bounds(self, node: Node, parts: Sequence[Part], evaluation: Evaluation) -> Known:
        """Return the numbers of a node that has a validation part."""
        if not (self._is_on and evaluation.is_first and node.num_validation):
            return {}
        count = Range(node.num_validation, node.num_validation)
        loss_sum = checks.loss_sum_of(node.num_validation)
        return {VALIDATION_CORRECT: ANY_COUNT, VALIDATION_COUNT: count, VALIDATION_LOSS_SUM: loss_sum}

    def read_scores(self, content: RecordDict, answers: Sequence[Answer], evaluation: Evaluation) -> Mapping[str, Any]:
        """Refuse a reply with more correct predictions than images, before anything of it is used."""
        right_of(checks.metrics_of(content), VALIDATION_CORRECT, VALIDATION_COUNT)
        return {}

    def take_scores(self, node: Node, metrics: Mapping[str, Any], evaluation: Evaluation) -> None:
        """Add a node's numbers to those of its domain. A part far larger than those of the others is left out."""
        correct, count = right_of(metrics, VALIDATION_CORRECT, VALIDATION_COUNT)
        loss_sum = float(metrics.get(VALIDATION_LOSS_SUM, math.nan)) if count else 0.0  # nan: it was not finite
        # A node that tells of none, as its owner hides few, says nothing of how many are usual.
        numbers = [n for other in evaluation.nodes if other.domain == node.domain and (n := other.num_validation)]
        too_many = announced.is_too_many(node.num_validation, numbers, evaluation.max_images)
        if self._tally is not None and not too_many:
            self._tally.add(node.domain, correct, count, loss_sum)

    def scored(self, evaluation: Evaluation, result: RoundResult) -> None:
        """Write the accuracy and the mean loss by domain; no loss where a node of the domain has none."""
        if self._is_on:
            tally = self._tally or Tally(self.run.domains)
            losses = {name: None if math.isnan(loss or 0.0) else loss for name, loss in tally.loss().items()}
            result.shown |= {KEY: tally.accuracy(), LOSS: losses}
