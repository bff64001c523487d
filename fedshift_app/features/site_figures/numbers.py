r"""Figures of test images with 95 % intervals, on the node.

With y the true class, :math:`\hat y` the predicted one and p the softmax probabilities of n images:

.. math::
    \mathrm{Brier}=\frac1{2n}\sum_i\sum_k(p_{ik}-[y_i=k])^2,\quad
    \mathrm{AUROC}_k=\frac{\sum_{y_i=k}\sum_{y_j\neq k}([p_{ik}>p_{jk}]+\tfrac12[p_{ik}=p_{jk}])}{n_k(n-n_k)}

AUPRC of a class is its average precision, the mean over its images i of the share of the class among all images that
score :math:`p_{ik}` or more; ECE is that of ``fedshift_app.features.figures.server`` (15 bins). The interval of each
is that of ``fedshift_core.intervals``, from the influence of each patient, where patients are known, else of each
image: the derivative of the figure by how often the image counts. scikit-learn's functions give the same values
(tests), but take a second to import.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedshift_app.features.site_figures.suppression import hide
from fedshift_core.intervals import LEAST_PATIENTS, Estimate, interval, over_classes
from fedshift_core.wire.counts import CALIBRATION_BINS
from fedshift_core.wire.site_figures import BY_CLASS, KNOWN, MACRO, NOT_FINITE, OVERALL, TOO_FEW, UNKNOWN, SiteNumbers

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


def units_of(groups: NDArray[np.str_] | None, images: int) -> tuple[Ints, int]:
    """Return the place of each image's patient, (n,), and the number of patients.

    Args:
        groups: The patient of each image, (n,), texts; empty: an image on its own. None if nobody says.
        images: n.
    """
    if groups is None:
        return np.arange(images), images
    alone = groups == ""
    named, places = np.unique(groups[~alone], return_inverse=True)
    units = np.empty(images, np.int64)
    units[~alone], units[alone] = places, len(named) + np.arange(alone.sum())
    return units, len(named) + int(alone.sum())


@dataclass(frozen=True)
class Rows:
    """Arrays with a row for each image; None where nobody says."""

    def __add__(self, other: Self) -> Self:
        pairs = [(getattr(self, each.name), getattr(other, each.name)) for each in fields(self)]
        return type(self)(*(None if a is None or b is None else np.concatenate([a, b]) for a, b in pairs))


@dataclass(frozen=True)
class Scored(Rows):
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

    @cached_property
    def units(self) -> tuple[Ints, int]:
        """The place of each image's patient, (n,), and the number of patients."""
        return units_of(self.groups, len(self.y))

    def estimate(
        self, value: float, influence: Floats, share: Floats, patients: int, most: float = math.inf
    ) -> Estimate:
        """Return a figure with influence and share of each patient, of those of images, (n,)."""
        return Estimate(value, self.by_patient(influence), self.by_patient(share), patients, most)

    def by_patient(self, values: Floats | Flags) -> Floats:
        """Return the sums over each patient's images, (m,), of values of images, (n,)."""
        return np.asarray(np.bincount(self.units[0], values, self.units[1]), np.float64)

    def patients_of(self, some: Flags) -> int:
        """Return how many patients some images are of."""
        return int(np.count_nonzero(self.by_patient(some)))

    def mean(self, values: NDArray[Any], of: Flags | None = None) -> Estimate:
        """Return the mean of values (n,), from 0 to 1, of some images; of a proportion no image says more than one."""
        some = np.ones(len(values), bool) if of is None else of
        number, value = int(some.sum()), float(values[some].mean())
        share = some / number
        most = number if values.dtype == bool else math.inf
        return self.estimate(value, share * (values - value), share, self.patients_of(some), most)

    @property
    def finite(self) -> bool:
        """Whether all probabilities are numbers."""
        return bool(np.isfinite(self.p).all())


def visible_classes(of_class: Ints, least: int) -> Flags:
    """Return of which classes figures may leave the node, (C,).

    Args:
        of_class: Images of each class, (C,).
        least: Least images behind a number. Further classes are hidden with those of fewer images (``suppression``):
            else a difference to all images would give them away.
    """
    visible: Flags = np.array(hide(of_class.tolist(), least)) >= max(least, 1)
    return visible


def figures(scored: Scored, least: int = 1) -> SiteNumbers:
    """Return the figures of scored images, of which only what ``least`` allows is a number.

    Args:
        scored: n images.
        least: Least images behind a number.
    """
    n, classes = scored.p.shape
    of_class = np.bincount(scored.y, minlength=classes)
    overall, by_class = np.zeros((len(OVERALL), 3)), np.zeros((len(BY_CLASS), classes, 3))
    overall_marks, by_class_marks = (np.full(each.shape[:-1], TOO_FEW, np.uint8) for each in (overall, by_class))
    visible = np.zeros(classes, bool)
    if n >= max(least, 1):
        visible = visible_classes(of_class, least)
        known = {name: visible & (n - of_class >= max(least, 1)) for name in BY_CLASS} | {"sensitivity": visible}
        means = _of_classes(scored, known, by_class)
        for row, name in enumerate(BY_CLASS):
            by_class_marks[row, known[name]] = NOT_FINITE if name in MACRO and not scored.finite else KNOWN
        for row, name in enumerate(OVERALL):
            if name in MACRO:
                marks = set(by_class_marks[BY_CLASS.index(MACRO[name])].tolist())
                overall_marks[row] = next(mark for mark in (KNOWN, NOT_FINITE, TOO_FEW) if mark in marks)
                overall[row] = means[MACRO[name]].triple() if overall_marks[row] == KNOWN else 0
            elif scored.finite or name == "accuracy":
                overall_marks[row], overall[row] = KNOWN, OVER_IMAGES[name](scored)
            else:
                overall_marks[row] = NOT_FINITE
    patients = UNKNOWN if scored.groups is None else scored.units[1]
    of_class = np.where(visible, of_class, UNKNOWN)
    return SiteNumbers(n, patients, of_class, overall, by_class, overall_marks, by_class_marks)


def rounded(numbers: SiteNumbers, rate: Callable[[str, float, int], float], least: int) -> SiteNumbers:
    """Return figures that are rounded, with the intervals of the rounded ones; means are those over rounded classes.

    Fewer patients than the least are not counted; the intervals are then from 0 to 1.

    Args:
        numbers: Exact ones.
        rate: Takes the name of a figure, its value and the number of images behind it, and returns the rounded value.
        least: Least number behind a number that leaves.
    """
    images, few = numbers.images, 0 <= numbers.patients < least
    alone = 1.0 if numbers.patients == UNKNOWN else numbers.patients / max(images, 1)  # patients of an image
    overall, by_class = numbers.overall.copy(), numbers.by_class.copy()

    def triple(name: str, value: float, behind: int) -> Floats:
        size = behind * alone
        return interval(min(max(rate(name, value, behind), 0.0), 1.0), 0.0 if few or size < LEAST_PATIENTS else size)

    for row, name in enumerate(BY_CLASS):
        for k in np.flatnonzero(numbers.by_class_marks[row] == KNOWN):
            own = int(numbers.of_class[k])
            behind = {"sensitivity": own, "specificity": images - own}.get(name, min(own, images - own))
            by_class[row, k] = triple(f"{name}/{k}", float(by_class[row, k, 0]), behind)
    for row, name in enumerate(OVERALL):
        if numbers.overall_marks[row] != KNOWN:
            continue
        if name in MACRO:
            place = BY_CLASS.index(MACRO[name])
            overall[row] = by_class[place, numbers.by_class_marks[place] == KNOWN].mean(axis=0)
        else:
            overall[row] = triple(name, float(overall[row, 0]), images)
    patients = UNKNOWN if few else numbers.patients
    return replace(numbers, patients=patients, overall=overall, by_class=by_class)


@dataclass
class _OverClasses:
    """The mean of a figure over classes, class by class.

    Attributes:
        patients: How many the site has.
        sides: 1 if images of the class alone are behind its figure, 2 if all are.
    """

    patients: int
    sides: int
    each: list[tuple[Floats, int]] = field(default_factory=list)
    influence: Floats | float = 0.0
    share: Floats | float = 0.0

    def add(self, estimate: Estimate) -> Floats:
        """Add the figure of a class; return it with its interval."""
        self.influence, self.share = self.influence + estimate.influence, self.share + estimate.share
        self.each.append((estimate.triple, estimate.patients))
        return self.each[-1][0]

    def triple(self) -> Floats:
        """Return the mean with its interval."""
        triples, number = np.array([triple for triple, _ in self.each]), len(self.each)
        patients = [behind for _, behind in self.each]
        if max(patients) < LEAST_PATIENTS:
            return np.asarray(triples.sum(axis=0) / number)
        behind = min(self.patients, max(LEAST_PATIENTS, number * min(patients) // self.sides))
        value = float(triples[:, 0].sum() / number)
        mean = Estimate(value, np.asarray(self.influence) / number, np.asarray(self.share) / number, behind)
        return over_classes(mean.triple, triples)


def _of_classes(scored: Scored, known: dict[str, Flags], by_class: Floats) -> dict[str, _OverClasses]:
    """Write the figures of the known classes; return the means over them."""
    means = {name: _OverClasses(scored.units[1], 1 + (name in ("auroc", "auprc"))) for name in BY_CLASS}
    for k in np.flatnonzero(known["sensitivity"]):
        own = scored.y == k
        estimates = {"sensitivity": scored.mean(scored.predicted == k, own)}
        if known["specificity"][k]:
            estimates["specificity"] = scored.mean(scored.predicted != k, ~own)
            if scored.finite:
                estimates |= dict(zip(("auroc", "auprc"), _ranked(scored, scored.p[:, k], own), strict=True))
        for name, estimate in estimates.items():
            by_class[BY_CLASS.index(name), k] = means[name].add(estimate)
    return means


def _brier(scored: Scored) -> Floats:
    """Return half the mean squared distance of the probabilities to the class, with its interval."""
    away = scored.p.copy()
    away[np.arange(len(away)), scored.y] -= 1
    return scored.mean((away**2).sum(axis=1) / 2).triple


def _ece(scored: Scored) -> Floats:
    r"""Return the expected calibration error with its interval.

    A bin's gap is never below 0, so that noise makes the error larger, by at most :math:`\sqrt{2/\pi}` times the sum of
    the standard deviations of the bins' gaps: the lower limit is that of an error which is so much smaller.
    """
    n, confidence = len(scored.y), scored.p.max(axis=1)
    bins = np.clip(np.ceil(confidence * CALIBRATION_BINS).astype(np.int64) - 1, 0, CALIBRATION_BINS - 1)
    gap, influence = (scored.predicted == scored.y) - confidence, np.zeros(n)
    total, noise = [], 0.0
    for b in np.unique(bins):
        inside = bins == b
        total.append(abs(gap[inside].sum()))
        influence[inside] = np.sign(gap[inside].sum()) * gap[inside]
        noise += math.sqrt((np.bincount(scored.units[0][inside], gap[inside]) ** 2).sum())
    value = float(np.sum(total)) / n
    each = np.full(n, 1 / n)
    high, low = (
        scored.estimate(given, each * (influence - value), each, scored.units[1]).triple
        for given in (value, max(value - math.sqrt(2 / math.pi) * noise / n, 0.0))
    )
    return np.array([value, low[1], high[2]])


def _ranked(scored: Scored, score: Floats, own: Flags) -> list[Estimate]:
    """Return AUROC and average precision of a class.

    Args:
        scored: The images.
        score: Their scores of the class, (n,).
        own: They are of the class, (n,).
    """
    others, mine = np.flatnonzero(~own), np.flatnonzero(own)
    others, mine = others[np.argsort(score[others])], mine[np.argsort(-score[mine])]  # mine from the highest down
    rising, falling = score[others], score[mine]
    of, against = len(mine), len(others)
    left, right = (np.searchsorted(rising, falling, side) for side in ("left", "right"))
    above = [np.searchsorted(-falling, -rising, side) for side in ("left", "right")]
    area = float((left + right).sum() / (2 * of * against))
    each = np.zeros(len(own))
    each[mine], each[others] = 1 / of, 1 / against
    moves = np.zeros(len(own))
    moves[mine], moves[others] = (left + right) / (2 * against), (above[0] + above[1]) / (2 * of)

    hits = np.searchsorted(-falling, -falling, "right")  # mine that score as much or more; and others
    taken = hits + (against - left)
    precision = hits / taken
    average = float(precision.sum() / of)
    # An image counts for itself, and for the precision at each image of the class that scores as much or less.
    gains, losses = (np.append(np.cumsum((part / taken**2)[::-1])[::-1], 0) for part in (taken - hits, hits))
    lifts = np.zeros(len(own))
    lifts[mine] = (precision - average + gains[np.searchsorted(-falling, -falling, "left")]) / of
    lifts[others] = -losses[above[0]] / of
    patients = min(scored.patients_of(own), scored.patients_of(~own))
    return [
        scored.estimate(area, each * (moves - area), each, patients),
        scored.estimate(average, lifts, each, patients),
    ]


#: Figures over all images that are no means over classes.
OVER_IMAGES: dict[str, Callable[[Scored], Floats]] = {
    "accuracy": lambda scored: scored.mean(scored.predicted == scored.y).triple,
    "brier": _brier,
    "ece": _ece,
}
