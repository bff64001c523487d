r"""Figures beyond accuracy, by domain and overall (docs/guide/figures.md), from what nodes count of test images.

Counts (``fedshift_core.wire.counts``) are checked before they are added up.

With N_ij how often class i is taken for j, n_i = sum_j N_ij and m_j = sum_i N_ij:

.. math::
    R_i=\frac{N_{ii}}{n_i},\quad P_i=\frac{N_{ii}}{m_i},\quad F_i=\frac{2N_{ii}}{n_i+m_i},\quad
    \mathrm{balanced}=\operatorname*{mean}_{n_i>0}R_i,\quad \mathrm{macroF1}=\operatorname*{mean}_{n_i>0}F_i

.. math:: \mathrm{ECE}=\sum_b\frac{n_b}{n}\left|\frac{c_b}{n_b}-\frac{s_b}{n_b}\right|

over 15 bins of equal width with n_b images, c_b of them right, and summed confidence s_b (Guo et al., "On Calibration
of Modern Neural Networks", ICML 2017, https://arxiv.org/abs/1706.04599). AUC is that of each class against all
others, averaged over the classes that have both.
"""

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from fedshift_app.features.figures.show import SHORT, Figures, images_text
from fedshift_core.accuracies import average, percent
from fedshift_core.arrays import Arrays
from fedshift_core.limits import MOST_NAME, Refused, plain
from fedshift_core.losses import Losses
from fedshift_core.options.scoring import round_name
from fedshift_core.wire.counts import CALIBRATION_BINS, Counts, Ints, from_arrays, shapes
from fedshift_core.wire.names import CALIBRATION, CLASS_SCORES, CLASSES, CONFUSION, COUNTS, FIGURES
from fedshift_core.wire.records import array_record
from fedshift_strategies.features.base import Column, ServerFeature, View
from fedshift_strategies.federation.context import RoundResult
from fedshift_strategies.federation.evaluation import Answer, Evaluation
from fedshift_strategies.federation.nodes import Node
from fedshift_strategies.federation.updates import decode

UNEQUAL = 2.0  # classes are, where the largest has more than so many times the images of the smallest
ROUNDING = 1e-6  # by which a mean confidence may lie out of its bin

Shares = NDArray[np.float64]


def test_images(nodes: Sequence[Node], domain: str, *, drawn: bool) -> int | None:
    """Return the number of distinct test images of a domain; None if unknown.

    Args:
        nodes: All nodes of the run.
        domain: The domain.
        drawn: Each node drew test images of its own (``shift.label_mix=own``), which may overlap.
    """
    if drawn:
        return None
    counts = [node.tests_of(domain) for node in nodes if domain in node.domains]
    if not counts:
        return next((count for node in nodes if (count := node.tests_of(domain))), None)
    shared = any(node.shared_test for node in nodes if domain in node.domains)
    return (max(counts) if shared else sum(counts)) or None


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


class CountedFigures(ServerFeature):
    """Adds up what nodes count, where ``evaluate.figures`` asks for it and all test images are scored."""

    key = "figures"
    section = Figures

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
        counts: dict[str, Counts | None] = {}
        for domain in self.run.domains if self._counts(evaluation) else ():
            each = evaluation.extra(self.name, domain)
            counts[domain] = functools.reduce(operator.add, each) if each else None
        result.passing[self.key] = counts

    @classmethod
    def section_of(
        cls, result: RoundResult, classes: Sequence[str], nodes: Sequence[Node], *, drawn: bool
    ) -> dict[str, Any] | None:
        """Return the figures of a round; None if no node counted."""
        counts: Mapping[str, Counts | None] = result.passing.get(cls.key, {})
        if not counts:
            return None
        images = {name: test_images(nodes, name, drawn=drawn) for name in counts}
        distinct = [number for number in images.values() if number is not None]
        known = [of_domain for of_domain in counts.values() if of_domain is not None]
        overall = sum(known[1:], known[0]) if len(known) == len(counts) else None
        total = sum(distinct) if len(distinct) == len(images) else None
        return {
            "round": result.server_round,
            "classes": list(classes),
            "domains": {
                name: None if of_domain is None else of(of_domain, images[name]) for name, of_domain in counts.items()
            },
            "overall": None if overall is None else of(overall, total),
        }

    @classmethod
    def view(cls, results: Mapping[str, Any]) -> View:
        """Return the columns of figures with their mean over the domains, and the worst domain."""
        figures = results.get(cls.key)
        by_domain = figures["domains"] if figures else {}
        notes, columns = [], dict[str, Column]()
        if least := Losses.of(results).overall(results["domains"]).worst_domain:
            of_least = by_domain.get(least)
            images = f", of {_images(of_least)}" if of_least else ""
            notes.append(f"worst domain: {least} {percent(results['domains'][least])}{images}")
        if figures is None or not any(by_domain.values()):  # no columns of nothing, where all owners keep the counts
            return View(notes=tuple(notes))
        for name, key in (("balanced^", "balanced_accuracy"), ("macro-F1^", "macro_f1")):
            values = {domain: None if given is None else given[key] for domain, given in by_domain.items()}
            columns[name] = (values, average(values), "")
        number = {d: None if given is None else given.get("images") or given["n"] for d, given in by_domain.items()}
        columns["images"] = (number, "", "")
        if all_of := figures["overall"]:
            names = zip(SHORT, ("accuracy", "balanced", "macro-F1", "AUC", "ECE"), strict=True)
            text = ", ".join(f"{name} {percent(all_of[key])}" for key, name in names if all_of[key] is not None)
            notes.append(f"^ of {round_name(figures['round'])}; all {_images(all_of)} together: {text}")
        # Of unequal classes accuracy alone misleads: the columns are there, however wide the table is.
        return View(columns, notes=tuple(notes)) if _unequal(by_domain) else View(spare=columns, notes=tuple(notes))


def _unequal(by_domain: Mapping[str, Mapping[str, Any] | None]) -> bool:
    """Tell whether a class has several times as many test images as another of its domain."""
    for of_domain in by_domain.values():
        held = [n for n in (of_domain or {}).get("per_class", {}).get("n", ()) if n]
        if held and max(held) > UNEQUAL * min(held):
            return True
    return False


def _images(figures: Mapping[str, Any]) -> str:
    return images_text(figures["n"], figures.get("images"), " test images")


def of(counts: Counts, images: int | None = None) -> dict[str, Any]:
    """Return the figures of counts, in percent; None for one that is not defined.

    Args:
        counts: The counts of the nodes.
        images: Number of distinct images behind them; None if unknown.
    """
    of_class, right, predicted = counts.classes
    n = counts.images
    recall, precision = shares(right, of_class), shares(right, predicted)
    f1 = np.where(of_class > 0, 2 * right / np.maximum(of_class + predicted, 1), np.nan)
    auc, within = (np.full(1, np.nan),) * 2 if counts.scores is None else aucs(counts.scores)
    return {
        "n": n,
        "images": images,
        "accuracy": _percent(right.sum() / n if n else np.nan),
        "balanced_accuracy": _percent(_mean(recall)),
        "macro_f1": _percent(_mean(f1)),
        "auc": _percent(_mean(auc)),
        "auc_within": _percent(_mean(within)),
        "ece": _percent(ece(counts.calibration)),
        "per_class": {
            "recall": [_percent(value) for value in recall],
            "precision": [_percent(value) for value in precision],
            "n": of_class.tolist(),
        },
        "confusion": None if counts.confusion is None else counts.confusion.tolist(),
    }


def shares(part: Ints | Shares, whole: Ints | Shares) -> Shares:
    """Return part / whole; NaN where the whole is 0."""
    return np.asarray(np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0))


def ece(calibration: Shares) -> float:
    """Return the expected calibration error of counts by bin of confidence, (3, bins); NaN without images."""
    number, right, confidence = calibration
    return float(np.abs(right - confidence).sum() / number.sum()) if number.sum() else float("nan")


def aucs(scores: Ints) -> tuple[Shares, Shares]:
    r"""Return the area under the ROC curve of each class against all others, and its largest error.

    .. math:: A=\frac{1}{PN}\sum_bp_b\Big(\sum_{a<b}n_a+\tfrac12n_b\Big),\quad |A-A'|\le\frac{1}{2PN}\sum_bp_bn_b

    Pairs in different bins are ordered as their scores are; of a pair in one bin, which counts half here, the exact
    area A' counts 0, half or 1.

    Args:
        scores: Histograms of the images of each class (p) and of all others (n), (2, C, B).

    Returns:
        Both (C,), NaN where a class has no image, or all.
    """
    own, others = scores.astype(np.float64)
    pairs = own.sum(axis=1) * others.sum(axis=1)
    below = np.cumsum(others, axis=1) - others
    area, tied = (own * (below + others / 2)).sum(axis=1), (own * others).sum(axis=1) / 2
    return shares(area, pairs), shares(tied, pairs)


def _mean(values: Shares) -> float:
    return float(np.nanmean(values)) if not np.isnan(values).all() else float("nan")


def _percent(value: float) -> float | None:
    return None if np.isnan(value) else 100 * float(value)
