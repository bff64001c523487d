"""What nodes count of test images for the figures (``fedshift_core.wire.counts``): checked before it is added up."""

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import RecordDict

from fedshift_core.arrays import Arrays
from fedshift_core.limits import MOST_NAME, Refused, plain
from fedshift_core.wire.counts import CALIBRATION_BINS, Counts, from_arrays, shapes
from fedshift_core.wire.names import CALIBRATION, CLASS_SCORES, CLASSES, CONFUSION, COUNTS, FIGURES
from strategies.features.base import ServerFeature
from strategies.federation.context import RoundResult
from strategies.federation.evaluation import Answer, Evaluation
from strategies.federation.updates import array_record, decode

ROUNDING = 1e-6  # by which a mean confidence may lie out of its bin


def read(content: RecordDict, scored: Mapping[str, tuple[int, int]], classes: int) -> dict[str, Counts]:
    """Return by domain what a node counted; a domain of which it tells nothing is left out.

    Args:
        content: The node's reply.
        scored: By domain how many images it scored, and how many of them are right as it says.
        classes: C.

    Raises:
        Refused: If a name, shape, type or number is not what it should be.
    """
    if COUNTS not in content:
        return {}
    record = array_record(content, COUNTS)
    if record is None:
        raise Refused(f"the record {COUNTS!r} is not one of arrays")
    wanted = {domain: shapes(domain, classes) for domain in scored}
    known = {name for names in wanted.values() for name in names}
    for name in record:
        if name not in known:
            raise Refused(f"unknown counts {plain(name, MOST_NAME)!r}")
    arrays = decode(record)
    counts_of = {}
    for domain, (images, right) in scored.items():
        if arrays.keys() & wanted[domain].keys():
            _check_shapes(arrays, wanted[domain])
            counts_of[domain] = from_arrays(arrays, domain)
            _check(arrays, counts_of[domain], domain, images, right)
    return counts_of


def _check_shapes(arrays: Arrays, wanted: Mapping[str, tuple[tuple[int, ...], type[np.generic]]]) -> None:
    for name, (shape, kind) in wanted.items():
        if name not in arrays:
            raise Refused(f"the counts lack {name}")
        array = arrays[name]
        if array.shape != shape or array.dtype != kind:
            raise Refused(
                f"{name} has shape {array.shape} and type {array.dtype}, expected {shape} and {np.dtype(kind)}"
            )
        if not (np.isfinite(array).all() and (array >= 0).all()):
            raise Refused(f"{name} holds numbers below 0, or that are not finite")


def _check(arrays: Arrays, counts: Counts, domain: str, images: int, right: int) -> None:
    """Hold counts against how many images were scored and how many of them are right, and against one another."""
    of_class, right_of, predicted = counts.classes
    name = (CLASSES if counts.confusion is None else CONFUSION) + domain
    _equal(name, [of_class.sum(), predicted.sum(), right_of.sum()], [images, images, right])
    if (right_of > np.minimum(of_class, predicted)).any():
        raise Refused(f"{name} has more right of a class than there are")
    name = CALIBRATION + domain
    number, correct, confidence = arrays[name]
    _equal(name, [number.sum(), correct.sum()], [images, right])
    edges = np.arange(CALIBRATION_BINS + 1) / CALIBRATION_BINS
    low, high = (number * (edge + slack) for edge, slack in ((edges[:-1], -ROUNDING), (edges[1:], ROUNDING)))
    if (number % 1).any() or (correct % 1).any() or (correct > number).any():
        raise Refused(f"{name} has counts that are not whole, or more right than there are")
    if (confidence < low).any() or (confidence > high).any():
        raise Refused(f"{name} has confidences out of their bins")
    if counts.scores is not None:
        own, others = counts.scores.sum(axis=2)
        _equal(CLASS_SCORES + domain, [*own, *others], [*of_class, *(images - of_class)])


def _equal(name: str, actual: Iterable[float], expected: Iterable[float]) -> None:
    for number, wanted in zip(actual, expected, strict=True):
        if number != wanted:
            raise Refused(f"{name} counts {number:g} images, expected are {wanted:g}")


class Figures(ServerFeature):
    """Adds up what nodes count, where ``evaluate.figures`` asks for it and all test images are scored."""

    def _counts(self, evaluation: Evaluation) -> bool:
        return self.run.config.evaluate.figures and evaluation.scores_tests and evaluation.share == 1

    def score_options(self, evaluation: Evaluation) -> dict[str, Any]:
        """Ask nodes to count."""
        return {FIGURES: True} if self._counts(evaluation) else {}

    def score_records(self, evaluation: Evaluation) -> tuple[str, ...]:
        """Allow the record of counts."""
        return (COUNTS,) if self._counts(evaluation) else ()

    def read_scores(self, content: RecordDict, answers: Sequence[Answer], evaluation: Evaluation) -> Mapping[str, Any]:
        """Return the counts of each domain, checked against its accuracy."""
        if not self._counts(evaluation):
            return {}
        scored = {answer.part.domain: (int(answer.score.count), int(answer.score.correct)) for answer in answers}
        return read(content, scored, self.run.num_classes)

    def scored(self, evaluation: Evaluation, result: RoundResult) -> None:
        """Write by domain the sum of the counts of the parts of the accuracy. It is None where a node sent none."""
        result.counts = {}
        for domain in self.run.domains if self._counts(evaluation) else ():
            each = evaluation.extra(self.name, domain)
            result.counts[domain] = functools.reduce(operator.add, each) if each else None
