r"""Figures of test images with 95 % intervals, on the node. NumPy only.

With y the true class, :math:`\hat y` the predicted one and p the softmax probabilities of n images:

.. math::
    \mathrm{Brier}=\frac1{2n}\sum_i\sum_k(p_{ik}-[y_i=k])^2,\quad
    \mathrm{AUROC}_k=\frac{\sum_{y_i=k}\sum_{y_j\neq k}([p_{ik}>p_{jk}]+\tfrac12[p_{ik}=p_{jk}])}{n_k(n-n_k)}

AUPRC of a class is its average precision, the mean over its images i of the share of the class among all images that
score :math:`p_{ik}` or more; ECE is that of ``strategies.features.figures`` (15 bins). Proportions have Wilson's
interval, the others that of a percentile bootstrap over patients, where they are known, else over images: each
resample draws as many of them, and an image counts as often as its patient was drawn. scikit-learn's functions give
the same values (tests), but take a second to import and one call for each class and resample.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedshift_core.intervals import wilson
from fedshift_core.suppression import hide
from fedshift_core.wire.counts import CALIBRATION_BINS
from fedshift_core.wire.site_figures import (
    BY_CLASS,
    KNOWN,
    MACRO,
    NOT_FINITE,
    OVERALL,
    RESAMPLES,
    TOO_FEW,
    UNKNOWN,
    SiteNumbers,
)  # fmt: skip

#: Resamples times images times classes, about 2 s of one core; with more images there are fewer resamples.
MOST_WORK, LEAST_RESAMPLES = 100_000_000, 100
CHUNK = 1_000_000  # weights that are in memory at a time

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Scored:
    """What a model said of n test images of C classes.

    Attributes:
        p: Softmax probabilities, (n, C).
        predicted: Predicted classes, (n,).
        y: True classes, (n,).
        groups: The patient of each image, (n,), texts; empty: an image on its own. None if nobody says.
    """

    p: Floats
    predicted: Ints
    y: Ints
    groups: NDArray[np.str_] | None

    def __add__(self, other: "Scored") -> "Scored":
        both = (self.groups, other.groups)
        groups = None if both[0] is None or both[1] is None else np.concatenate([both[0], both[1]])
        return Scored(
            np.concatenate([self.p, other.p]), np.concatenate([self.predicted, other.predicted]),
            np.concatenate([self.y, other.y]), groups,
        )  # fmt: skip

    @cached_property
    def units(self) -> tuple[Ints, int]:
        """What a bootstrap draws: the place of each image's patient, (n,), and the number of patients."""
        n = len(self.y)
        if self.groups is None:
            return np.arange(n), n
        alone = self.groups == ""
        named, places = np.unique(self.groups[~alone], return_inverse=True)
        units = np.empty(n, np.int64)
        units[~alone], units[alone] = places, len(named) + np.arange(alone.sum())
        return units, len(named) + int(alone.sum())

    @property
    def finite(self) -> bool:
        """Whether all probabilities are numbers."""
        return bool(np.isfinite(self.p).all())


def visible_classes(of_class: Ints, least: int) -> Flags:
    """Return of which classes figures may leave the node, (C,).

    Args:
        of_class: Images of each class, (C,).
        least: Least images behind a number. Further classes are hidden with those of fewer images, as
            :mod:`fedshift_core.suppression` says: else a difference to all images would give them away.
    """
    visible: Flags = np.array(hide(of_class.tolist(), least)) >= max(least, 1)
    return visible


def figures(scored: Scored, rng: np.random.Generator, least: int = 1) -> SiteNumbers:
    """Return the figures of scored images, of which only what ``least`` allows is a number.

    Args:
        scored: n images.
        rng: Draws the resamples.
        least: Least images behind a number.
    """
    n, classes = scored.p.shape
    of_class = np.bincount(scored.y, minlength=classes)
    visible = visible_classes(of_class, least) if n >= max(least, 1) else np.zeros(classes, bool)
    overall, by_class = np.zeros((len(OVERALL), 3)), np.zeros((len(BY_CLASS), classes, 3))
    overall_marks = np.full(len(OVERALL), TOO_FEW, np.uint8)
    by_class_marks = np.full((len(BY_CLASS), classes), TOO_FEW, np.uint8)
    resamples = 0
    if n >= max(least, 1):
        sides = visible & (n - of_class >= max(least, 1))
        known = {"sensitivity": visible, "specificity": sides, "auroc": sides, "auprc": sides}
        _proportions(scored, of_class, known, overall, by_class)
        resamples = _number(n, classes)
        _bootstrapped(scored, known, resamples, rng, overall, by_class)
        finite = scored.finite
        for row, name in enumerate(BY_CLASS):
            needs = name in ("auroc", "auprc")
            by_class_marks[row, known[name]] = NOT_FINITE if needs and not finite else KNOWN
        for row, name in enumerate(OVERALL):
            if name in MACRO:
                marks = set(by_class_marks[BY_CLASS.index(MACRO[name])].tolist())
                overall_marks[row] = next(mark for mark in (KNOWN, NOT_FINITE, TOO_FEW) if mark in marks)
            else:
                overall_marks[row] = KNOWN if finite or name == "accuracy" else NOT_FINITE
    overall[overall_marks != KNOWN] = 0
    by_class[by_class_marks != KNOWN] = 0
    patients = UNKNOWN if scored.groups is None else scored.units[1]
    return SiteNumbers(
        n, patients, resamples, np.where(visible, of_class, UNKNOWN), overall, by_class, overall_marks, by_class_marks
    )


def _proportions(scored: Scored, of_class: Ints, known: dict[str, Flags], overall: Floats, by_class: Floats) -> None:
    """Write accuracy, sensitivity and specificity with Wilson's interval."""
    n, classes = scored.p.shape
    right = scored.predicted == scored.y
    overall[OVERALL.index("accuracy")] = wilson(float(right.sum()), float(n))
    hits = np.bincount(scored.y[right], minlength=classes)
    wrongly = np.bincount(scored.predicted[~right], minlength=classes)
    for name, number, of in (
        ("sensitivity", hits, of_class), ("specificity", n - of_class - wrongly, n - of_class),
    ):  # fmt: skip
        some = known[name]
        by_class[BY_CLASS.index(name), some] = wilson(number[some].astype(float), of[some].astype(float))


def _number(images: int, classes: int) -> int:
    return int(np.clip(MOST_WORK // (images * classes), LEAST_RESAMPLES, RESAMPLES))


def _bootstrapped(
    scored: Scored, known: dict[str, Flags], resamples: int, rng: np.random.Generator, overall: Floats, by_class: Floats
) -> None:
    """Write the figures that have no interval of their own, with that of a bootstrap."""
    values = weighted(scored, known, np.ones((1, len(scored.y))))
    draws = [weighted(scored, known, weights) for weights in resampled(scored, resamples, rng)]
    for name, value in values.items():
        each = np.concatenate([drawn[name] for drawn in draws])  # (B, ...)
        triples = _interval(value[0], each, scored.units[1])
        if name.startswith("class/"):
            of = name.removeprefix("class/")
            by_class[BY_CLASS.index(of), known[of]] = triples
        else:
            overall[OVERALL.index(name)] = triples


def _interval(value: Floats, draws: Floats, units: int) -> Floats:
    """Return value, low and high, (..., 3).

    The interval holds the value, which that of the percentiles alone need not (ECE is larger in resamples). Resamples
    that lack a class have no value. One patient alone says nothing of others.
    """
    low, high = np.zeros_like(value), np.ones_like(value)
    if units > 1:
        ordered = np.sort(draws, axis=0)  # NaN comes last
        number = (~np.isnan(draws)).sum(axis=0)
        low, high = _quantile(ordered, number, 0.025), _quantile(ordered, number, 0.975)
        low, high = np.where(number > 0, low, 0.0), np.where(number > 0, high, 1.0)
    return np.stack([value, np.minimum(low, value), np.maximum(high, value)], axis=-1)


def _quantile(ordered: Floats, number: Ints, share: float) -> Floats:
    """Return a quantile of the first ``number`` (...,) of sorted draws (B, ...), interpolated as NumPy does."""
    place = share * np.maximum(number - 1, 0)
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, np.maximum(number - 1, 0))
    a, b = (np.take_along_axis(ordered, at[None], axis=0)[0] for at in (below, above))
    return np.asarray(a + (b - a) * (place - below))


def resampled(scored: Scored, resamples: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Yield how often each image counts in each resample, (b, n), a part of the resamples at a time."""
    units, number = scored.units
    step = max(1, CHUNK // len(units))
    for first in range(0, resamples, step):
        rows = min(step, resamples - first)
        drawn = rng.integers(0, number, size=(rows, number))
        places = (drawn + number * np.arange(rows)[:, None]).ravel()
        yield np.bincount(places, minlength=rows * number).reshape(rows, number)[:, units].astype(np.float64)


def weighted(scored: Scored, known: dict[str, Flags], weights: Floats) -> dict[str, Floats]:
    """Return figures of images that count several times, or not at all; NaN where one is not defined.

    Args:
        scored: n images.
        known: By figure of a class, the K classes whose figure is a number, (C,).
        weights: How often each image counts, (b, n), whole numbers. Sums of products of them are exact, or in the order
            of the images: they do not depend on threads.

    Returns:
        Balanced accuracy, Brier, ECE and the macro means, (b,); ``class/auroc`` and ``class/auprc``, (b, K).
    """
    right = scored.predicted == scored.y
    total = weights.sum(axis=1)
    by = np.eye(scored.p.shape[1])[scored.y][:, known["sensitivity"]]
    hits, of = weights @ (by * right[:, None]), weights @ by
    sensitivity = np.divide(hits, of, out=np.full(of.shape, np.nan), where=of > 0)
    values = {"balanced_accuracy": _mean(sensitivity)}
    if not scored.finite:
        return values
    values |= {"brier": (weights * _brier(scored)).sum(axis=1) / total, "ece": _ece(scored, weights) / total}
    ranks = [_ranked(scored.p[:, k], scored.y == k, weights) for k in np.flatnonzero(known["auroc"])]
    for place, name in enumerate(("auroc", "auprc")):
        each = np.stack([pair[place] for pair in ranks], axis=1) if ranks else np.zeros((len(weights), 0))
        values |= {f"class/{name}": each, name: _mean(each)}
    return values


def _mean(values: Floats) -> Floats:
    """Return the mean over the classes (b, K) that have a number; NaN where none has."""
    number = (~np.isnan(values)).sum(axis=1)
    return np.asarray(np.divide(np.nansum(values, axis=1), number, out=np.full(len(values), np.nan), where=number > 0))


def _brier(scored: Scored) -> Floats:
    """Return half the squared distance of each image's probabilities to its class, (n,), from 0 to 1."""
    away = scored.p.copy()
    away[np.arange(len(away)), scored.y] -= 1
    return np.asarray((away**2).sum(axis=1) / 2)


def _ece(scored: Scored, weights: Floats) -> Floats:
    """Return n times the expected calibration error, (b,)."""
    confidence = scored.p.max(axis=1)
    bins = np.clip(np.ceil(confidence * CALIBRATION_BINS).astype(np.int64) - 1, 0, CALIBRATION_BINS - 1)
    gap = (scored.predicted == scored.y) - confidence
    each = [np.abs((weights[:, bins == b] * gap[bins == b]).sum(axis=1)) for b in np.unique(bins)]
    return np.asarray(np.sum(each, axis=0))


def _ranked(score: Floats, own: Flags, weights: Floats) -> tuple[Floats, Floats]:
    """Return AUROC and average precision of a class, (b,) each.

    Args:
        score: The images' scores of the class, (n,).
        own: They are of the class, (n,).
        weights: (b, n).
    """
    others, mine = np.flatnonzero(~own), np.flatnonzero(own)
    others, mine = others[np.argsort(score[others])], mine[np.argsort(-score[mine])]  # mine from the highest down
    ordered = score[others]
    left, right = (np.searchsorted(ordered, score[mine], side) for side in ("left", "right"))
    below = np.concatenate([np.zeros((len(weights), 1)), np.cumsum(weights[:, others], axis=1)], axis=1)
    w = weights[:, mine]
    positives, negatives = w.sum(axis=1), below[:, -1]
    with np.errstate(invalid="ignore", divide="ignore"):
        area = (w * (below[:, left] + below[:, right])).sum(axis=1) / (2 * positives * negatives)
        last = np.searchsorted(-score[mine], -score[mine], "right") - 1  # of those that score the same
        hits = np.cumsum(w, axis=1)[:, last]
        false = negatives[:, None] - below[:, left]
        precision = np.divide(hits, hits + false, out=np.zeros_like(hits), where=hits > 0)
        average = (w * precision).sum(axis=1) / positives
    return np.asarray(area), np.where(negatives > 0, average, np.nan)
