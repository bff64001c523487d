"""Scores on the nodes' validation parts, where ``allocation.validation_fraction`` is above 0."""

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import RecordDict

from fedshift_core.wire.names import VALIDATION, VALIDATION_CORRECT, VALIDATION_COUNT
from fedshift_core.wire.scores import Part
from strategies.features.base import ServerFeature
from strategies.federation import announced, checks
from strategies.federation.checks import ANY_COUNT, Known, Range, right_of
from strategies.federation.context import RoundResult
from strategies.federation.evaluation import Answer, Evaluation, Tally
from strategies.federation.nodes import Node


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
        return {VALIDATION_CORRECT: ANY_COUNT, VALIDATION_COUNT: count}

    def read_scores(self, content: RecordDict, answers: Sequence[Answer], evaluation: Evaluation) -> Mapping[str, Any]:
        """Refuse a reply with more correct predictions than images, before anything of it is used."""
        right_of(checks.metrics_of(content), VALIDATION_CORRECT, VALIDATION_COUNT)
        return {}

    def take_scores(self, node: Node, metrics: Mapping[str, Any], evaluation: Evaluation) -> None:
        """Add a node's numbers to those of its domain. A part far larger than those of the others is left out."""
        validated = right_of(metrics, VALIDATION_CORRECT, VALIDATION_COUNT)
        numbers = [other.num_validation for other in evaluation.nodes if other.domain == node.domain]
        too_many = announced.is_too_many(node.num_validation, numbers, evaluation.max_images)
        if self._tally is not None and not too_many:
            self._tally.add(node.domain, *validated, 0.0)

    def scored(self, evaluation: Evaluation, result: RoundResult) -> None:
        """Write the accuracy by domain."""
        if self._is_on:
            result.validation = (self._tally or Tally(self.run.domains)).accuracy()
