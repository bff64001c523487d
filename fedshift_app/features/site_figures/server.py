"""Figures that nodes work out of their own test images, with 95 % intervals (docs/guide/figures.md).

Their numbers are checked here. What a run shows of them is in :mod:`fedshift_app.features.site_figures.show`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from fedshift_app.features import records
from fedshift_app.features.site_figures import due
from fedshift_app.features.site_figures.show import KEY
from fedshift_core.intervals import interval
from fedshift_core.limits import Refused
from fedshift_core.wire.names import ASK_SITE_FIGURES, SITE_FIGURES
from fedshift_core.wire.scores import Part
from fedshift_core.wire.site_figures import (
    BY_CLASS,
    KNOWN,
    MACRO,
    NOT_FINITE,
    OVERALL,
    TOO_FEW,
    UNKNOWN,
    Numbers,
    SiteNumbers,
    from_arrays,
    shapes,
)
from fedshift_strategies.features.base import Asked, Scoring, ServerFeature, Steps
from fedshift_strategies.federation.evaluation import Answer

ROUNDING = 1e-9


class SiteFigures(ServerFeature):
    """Asks nodes for figures of their test images in the rounds in which they are due.

    Attributes:
        ask: The name of a message's key that asks for them.
        record: That of the record with them.
        key: Under which they are handed on.
    """

    ask, record, key = ASK_SITE_FIGURES, SITE_FIGURES, KEY

    def on_scores(self, scoring: Scoring) -> Steps:
        """Ask nodes for figures, and hand on those of all, in the order of the domains and of the plan."""
        is_due = self.is_due(scoring.server_round)

        def asks() -> bool:
            return is_due and scoring.evaluation.scores_tests and scoring.evaluation.share == 1

        yield Asked(lambda node: {self.ask: True}, when=asks, reads=(self.record,), read=self._read)
        if asks():
            each = [given for domain in self.run.domains for given in scoring.evaluation.extra(self.name, domain)]
            scoring.result.passing[self.key] = [given for given in each if given[-1] is not None]

    def is_due(self, server_round: int) -> bool:
        """Tell whether the run has such figures after a round."""
        return bool(self.run.config.evaluate.site_figures and due(self.run.config, server_round))

    def numbers(self, content: RecordDict, answers: Sequence[Answer]) -> Mapping[str, Any]:
        """Return by domain the figures of a reply; a domain of which it says nothing is left out.

        Raises:
            Refused: If a name, shape, type or number is not what it should be.
        """
        answer_of = {answer.part.domain: answer for answer in answers if answer.part.start == 0}
        wanted = {domain: shapes(domain, self.run.num_classes) for domain in answer_of}
        numbers_of = {
            domain: from_arrays(a, domain) for domain, a in records.read(content, self.record, wanted).items()
        }
        for domain, numbers in numbers_of.items():
            part, score = answer_of[domain].part, answer_of[domain].score
            _check(numbers, part, score.correct if len(part) == part.drawn else None)
        return numbers_of

    def _read(self, content: RecordDict, answers: Sequence[Answer]) -> Mapping[str, Any]:
        """Return index, domain and figures of each domain that was scored; None for figures that were not sent."""
        numbers, domains = self.numbers(content, answers), [answer.part.domain for answer in answers]
        return {
            domain: (answer.node.index, domain, numbers.get(domain))
            for domain, answer in zip(domains, answers, strict=True)
        }


def _check(numbers: SiteNumbers, part: Part, correct: float | None) -> None:
    """Hold figures against how many images were scored and how many of them are right, and against one another."""
    where, images = f"the metrics of {part.domain}", numbers.images
    if images != part.drawn:
        raise Refused(f"{where} are of {images} images, asked were {part.drawn}")
    if not (numbers.patients == UNKNOWN or 1 <= numbers.patients <= max(images, 1)):
        raise Refused(f"{where} are of {numbers.patients} patients with {images} images")
    visible = numbers.of_class[numbers.of_class != UNKNOWN]
    complete = len(visible) == len(numbers.of_class)
    if (visible <= 0).any() or visible.sum() > images or (complete and visible.sum() != images):
        raise Refused(f"{where} are of {visible.sum()} images by class, and of {images} images")
    values = (*numbers.overall, *numbers.by_class)
    marks = (*numbers.overall_marks, *numbers.by_class_marks)
    for kind, value, mark in zip((*OVERALL, *BY_CLASS), values, marks, strict=True):
        _check_numbers(f"{kind} of {part.domain}", value, mark)
    _check_classes(numbers, where)
    if numbers.overall_marks[0] == KNOWN:
        accuracy = numbers.overall[0, 0]
        _check_widths(f"{where}: accuracy", numbers.overall[:1], np.array([images]))
        if correct is not None and abs(accuracy * images - correct) > ROUNDING * images:
            raise Refused(f"{where} say that {accuracy:.4f} of {images} are right, its score says {correct:g}")


def _check_numbers(name: str, numbers: Numbers, marks: Any) -> None:
    """Check values with their intervals, (..., 3), and marks, (...,)."""
    known = marks == KNOWN
    value, low, high = np.moveaxis(numbers, -1, 0)
    if not np.isin(marks, (KNOWN, TOO_FEW, NOT_FINITE)).all():
        raise Refused(f"{name} has an unknown mark")
    if not ((numbers >= 0) & (numbers <= 1)).all():
        raise Refused(f"{name} is not between 0 and 1")
    if not ((low <= value) & (value <= high))[known].all():
        raise Refused(f"{name} is not in its interval")
    if numbers[~known].any():
        raise Refused(f"{name} has a number though it is marked as too few or not finite")


def _check_widths(name: str, triples: Numbers, images: NDArray[np.int64]) -> None:
    """Check that intervals of proportions, (k, 3), say no more than the images behind them, (k,)."""
    wider = (triples - interval(triples[:, 0], images.astype(float)))[:, 1:] * (1, -1)
    if (wider > ROUNDING).any():
        raise Refused(f"{name} has an interval that is narrower than that of as many independent images")


def _check_classes(numbers: SiteNumbers, where: str) -> None:
    """Check that figures of a class go with its number of images, and means with figures of classes."""
    known = numbers.by_class_marks == KNOWN
    if known[:, numbers.of_class == UNKNOWN].any():
        raise Refused(f"{where} have a number of a class whose images they do not tell")
    for name, of in (("sensitivity", numbers.of_class), ("specificity", numbers.images - numbers.of_class)):
        place = BY_CLASS.index(name)
        triples, n = numbers.by_class[place, known[place]], of[known[place]]
        right = np.round(triples[:, 0] * n)
        if (n <= 0).any() or np.abs(right / np.maximum(n, 1) - triples[:, 0]).max(initial=0) > ROUNDING:
            raise Refused(f"{where} have a {name} that no number of right images gives")
        _check_widths(f"{where}: {name}", triples, n)
    for name in MACRO:
        if (numbers.overall_marks[OVERALL.index(name)] == KNOWN) != (numbers.macro_classes(name) > 0):
            raise Refused(f"{where}: {name} does not go with the metrics of classes")
