"""Scores on the nodes' validation parts, where ``allocation.validation_fraction`` is above 0."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedshift_core.accuracies import average, mean, rank
from fedshift_core.wire.names import VALIDATION, VALIDATION_CORRECT, VALIDATION_COUNT, VALIDATION_LOSS_SUM
from fedshift_strategies.features.base import Column, Scoring, ServerFeature, Steps, View, chosen
from fedshift_strategies.federation import announced, checks
from fedshift_strategies.federation.checks import ANY_COUNT, Known, Range, right_of
from fedshift_strategies.federation.context import RoundResult
from fedshift_strategies.federation.evaluation import Asked, Evaluation, Tally
from fedshift_strategies.federation.nodes import Node


class Validation(ServerFeature):
    """Has each node score its validation part with a round's first questions. Sums are by domain."""

    key = "validation"
    loss_key = "validation_loss"
    more_keys = (loss_key,)
    before = "others"

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
        scoring.result.shown |= {self.key: tally.accuracy(), self.loss_key: losses}

    @classmethod
    def results(cls, history: Sequence[RoundResult], nodes: Sequence[Node], *, drawn: bool) -> dict[str, Any]:
        """Return the best round by validation, with its accuracy on test images."""
        best_result = best(history)
        if best_result is None or not best_result.accuracy:  # rounds that another run trained have no accuracy
            return {}
        return {"best_validation": chosen(best_result, "validation images")}

    @classmethod
    def view(cls, results: Mapping[str, Any]) -> View:
        """Return the columns of the best rounds, by test images and by validation images; none if nothing trained."""
        if results.get("rounds") == 0:
            return View()
        columns: dict[str, Column] = {}
        notes = []
        by_test, by_validation = "after seeing test results", "on validation images"
        for mark, key, how in (("*", "best_test", by_test), ("+", "best_validation", by_validation)):
            if found := results.get(key):
                columns[f"best round ({found['round']}){mark}"] = (found["domains"], average(found["domains"]), "")
                partly = results.get("partly_scored_rounds", 0)
                among = f", among the rounds scored on all test images ({partly} were not)" if partly else ""
                notes.append(f"{mark} chosen {how}{among}")
        if kept := results.get("chosen_round"):
            notes[-1] += f"; its model is kept: {kept['files'][0]}"
        return View(columns, notes=tuple(notes))


def _bounds(node: Node) -> Known:
    """Return the numbers of a node that has a validation part."""
    if not node.num_validation:
        return {}
    count, loss_sum = Range(node.num_validation, node.num_validation), checks.loss_sum_of(node.num_validation)
    return {VALIDATION_CORRECT: ANY_COUNT, VALIDATION_COUNT: count, VALIDATION_LOSS_SUM: loss_sum}


def _add(tally: Tally, node: Node, metrics: Mapping[str, Any], evaluation: Evaluation) -> None:
    """Add a node's numbers to those of its domain. A part far larger than those of the others is left out."""
    correct, count = right_of(metrics, VALIDATION_CORRECT, VALIDATION_COUNT)
    loss_sum = float(metrics.get(VALIDATION_LOSS_SUM, math.nan)) if count else 0.0  # nan: it was not finite
    # A node that tells of none, as its owner hides few, says nothing of how many are usual.
    numbers = [n for other in evaluation.nodes if other.domain == node.domain and (n := other.num_validation)]
    if not announced.is_too_many(node.num_validation, numbers, evaluation.max_images):
        tally.add(node.domain, correct, count, loss_sum)


def validated(history: Sequence[RoundResult]) -> list[RoundResult]:
    """Return the rounds scored on all test images and on validation parts."""
    return [result for result in history if result.evaluated_share == 1 and mean(of(result).values()) is not None]


def best(history: Sequence[RoundResult]) -> RoundResult | None:
    """Return the best round by validation; None if none was scored on validation parts.

    Of rounds with the same mean accuracy over the domains it is the one with the lowest mean loss, as a part of a few
    images is often all right from an early round on. A round without a loss comes after one that has it, and of equal
    rounds the first is the best.
    """
    return max(validated(history), key=lambda result: (*rank(of(result)), -_loss(result)), default=None)


def last_gain(history: Sequence[RoundResult]) -> RoundResult | None:
    """Return the first round with the highest accuracy, from which ``evaluate.patience`` counts; None as above."""
    return max(validated(history), key=lambda result: rank(of(result)), default=None)


def of(result: RoundResult) -> Mapping[str, float | None]:
    """Return the accuracy of a round on validation parts by domain; empty where it has none."""
    accuracy: Mapping[str, float | None] = result.shown.get(Validation.key, {})
    return accuracy


def _loss(result: RoundResult) -> float:
    """Return the mean loss over the domains on validation parts; infinite where a domain has none."""
    losses: Mapping[str, float | None] = result.shown.get(Validation.loss_key, {})
    scored = [losses.get(domain) for domain, accuracy in of(result).items() if accuracy is not None]
    loss = mean(scored)
    return math.inf if loss is None or None in scored else loss
