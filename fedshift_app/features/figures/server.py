"""Counts of test images that nodes send (``fedshift_core.wire.counts``), checked and added up."""

import functools
import logging
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import RecordDict

from fedshift_app.features import records
from fedshift_app.features.figures import show
from fedshift_core.limits import Refused
from fedshift_core.wire.counts import CALIBRATION_BINS, Counts, from_arrays, shapes
from fedshift_core.wire.names import CALIBRATION, CLASS_SCORES, CLASSES, CONFUSION, COUNTS, FIGURES
from fedshift_strategies.features.base import Asked, RoundResult, Scoring, ServerFeature, Steps
from fedshift_strategies.federation.evaluation import Answer

log = logging.getLogger("fedshift")

EARLY = 3  # rounds in a row that predict one class, after which a warning appears during the run
ROUNDING = 1e-6  # by which a mean confidence may lie out of its bin


def _check(counts: Counts, domain: str, images: int, right: int) -> None:
    """Hold counts against how many images were scored and how many of them are right, and against one another."""
    of_class, right_of, predicted = counts.classes
    name = (CLASSES if counts.confusion is None else CONFUSION) + domain
    _equal(name, [of_class.sum(), predicted.sum(), right_of.sum()], [images, images, right])
    if (right_of > np.minimum(of_class, predicted)).any():
        raise Refused(f"{name} has more right of a class than there are")
    name, (number, correct, confidence) = CALIBRATION + domain, counts.calibration
    _equal(name, [number.sum(), correct.sum()], [images, right])
    low, high = np.arange(CALIBRATION_BINS) / CALIBRATION_BINS, np.arange(1, CALIBRATION_BINS + 1) / CALIBRATION_BINS
    if (counts.calibration[:2] % 1).any() or (correct > number).any():
        raise Refused(f"{name} has counts that are not whole, or more right than there are")
    if ((confidence < number * (low - ROUNDING)) | (confidence > number * (high + ROUNDING))).any():
        raise Refused(f"{name} has confidences out of their bins")
    if counts.scores is not None:
        own, others = counts.scores.sum(axis=2)
        _equal(CLASS_SCORES + domain, [*own, *others], [*of_class, *(images - of_class)])


def _equal(name: str, actual: Sequence[float], expected: Sequence[float]) -> None:
    for number, wanted in zip(actual, expected, strict=True):
        if number != wanted:
            raise Refused(f"{name} counts {number:g} images, expected are {wanted:g}")


class CountedFigures(ServerFeature):
    """Adds up what nodes count, where ``evaluate.figures`` asks for it and all test images are scored."""

    _one_class: int | None = 0  # rounds of this process that predict one class; None: one did not

    def on_scores(self, scoring: Scoring) -> Steps:
        """Ask nodes to count, and write by domain the sum of what they counted. It is None where a node sent none."""

        def counts() -> bool:
            return scoring.evaluation.scores_tests and scoring.evaluation.share == 1

        yield Asked(lambda node: {FIGURES: True}, when=counts, reads=(COUNTS,), read=self._read)
        summed: dict[str, Counts | None] = {}
        for domain in self.run.domains if counts() else ():
            each = scoring.evaluation.extra(self.name, domain)
            summed[domain] = functools.reduce(operator.add, each) if each else None
        scoring.result.passing[show.KEY] = summed
        if summed:
            self._look(summed, scoring.result)

    def _look(self, counts: Mapping[str, Counts | None], result: RoundResult) -> None:
        """Note the one class that a round predicts; warn once if the first rounds of this process do."""
        name = show.one_class(counts.values(), self.run.config.dataset.known().classes)
        result.shown |= {show.ONE_CLASS: name} if name else {}
        if self._one_class is None:
            return
        self._one_class = self._one_class + 1 if name else None
        if self._one_class == EARLY and result.server_round < self.run.rounds:
            log.warning("%s", show.one_class_text({"class": name, "rounds": EARLY}))

    def _read(self, content: RecordDict, answers: Sequence[Answer]) -> Mapping[str, Any]:
        """Return what a node counted by domain; a domain of which it tells nothing is left out.

        Raises:
            Refused: If a name, shape, type or number is not what it should be, or goes not with its accuracy.
        """
        scored = {answer.part.domain: answer.score for answer in answers}
        wanted, counts_of = {domain: shapes(domain, self.run.num_classes) for domain in scored}, dict[str, Counts]()
        for domain, arrays in records.read(content, COUNTS, wanted).items():
            for name, array in arrays.items():
                if not (np.isfinite(array) & (array >= 0)).all():
                    raise Refused(f"{name} holds numbers below 0, or that are not finite")
            counts_of[domain] = from_arrays(arrays, domain)
            _check(counts_of[domain], domain, int(scored[domain].count), int(scored[domain].correct))
        return counts_of
