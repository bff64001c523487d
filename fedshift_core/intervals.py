r"""95 % intervals of figures from 0 to 1, of images of which several may be of one patient.

A figure :math:`\theta` has the interval of a proportion (Clopper and Pearson, Biometrika 1934) of

.. math::
    n_e=\theta(1-\theta)\,\frac{d+1}{d\,V+\theta(1-\theta)\,a},\quad V=\sum_iu_i^2,\quad
    d=\frac{(\sum_iu_i^2)^2}{\sum_iu_i^4}

images (as Korn and Graubard, Survey Methodology 1998, take them by the design effect). :math:`u_i` is the influence of
patient i on the figure, so V is its variance; d is the number of patients that V rests on; a is the largest share of a
patient, and :math:`\theta(1-\theta)\,a` bounds the variance of any figure. One more patient with that bound is counted.
At 0 and 1 nothing says how alike images of a patient are, and :math:`n_e` is the number of patients.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedshift_core.arrays import Floats

TAIL, TINY, NOISE = 0.025, 1e-300, 1e-20
LEAST_PATIENTS = 3  # fewer say nothing of others, and an interval of theirs would tell of one


@dataclass(frozen=True)
class Estimate:
    """A figure with what its interval needs.

    Attributes:
        value: The figure, from 0 to 1.
        influence: By how much each patient's images move it, (m,), summing up to 0.
        share: How much of it each patient's images are, (m,).
        patients: How many patients a figure of 0 or 1 rests on, the fewest where it has several parts.
        most: The size is at most this.
    """

    value: float
    influence: Floats
    share: Floats
    patients: int
    most: float = math.inf

    @property
    def size(self) -> float:
        """The number of images, each of another patient, that would say as much; 0 of too few patients."""
        room, squares = self.value * (1 - self.value), self.influence**2
        variance = squares.sum()
        if self.patients < LEAST_PATIENTS:
            return 0.0
        if variance <= NOISE * room:
            return float(self.patients)
        behind = variance**2 / (squares**2).sum()
        size = room * (behind + 1) / (behind * variance + room * self.share.max())
        return float(min(size, self.most))

    @property
    def triple(self) -> Floats:
        """The figure with its interval, (3,)."""
        return interval(self.value, self.size)


def interval(value: Floats | float, size: Floats | float) -> Floats:
    """Return figures with the 95 % interval of a proportion, shape (..., 3): value, low, high.

    Args:
        value: From 0 to 1.
        size: Number of images, each of another patient, not always whole; 0: the interval is 0 to 1.
    """
    from scipy.special import betaincinv  # here: it takes long to import

    v, n = np.broadcast_arrays(np.asarray(value, np.float64), np.asarray(size, np.float64))
    right, wrong = v * n, (1 - v) * n
    low = np.where(right > 0, betaincinv(np.maximum(right, TINY), wrong + 1, TAIL), 0)
    high = np.where(wrong > 0, betaincinv(right + 1, np.maximum(wrong, TINY), 1 - TAIL), 1)
    return np.stack([v, np.minimum(low, v), np.maximum(high, v)], axis=-1)


def pooled(triples: Floats, weights: Floats, *, together: bool = False) -> Floats:
    """Return a weighted mean of figures with its interval, (3,).

    Args:
        triples: Values with their intervals, (k, 3).
        weights: Their weights, (k,), which sum up to 1.
        together: The figures may be of the same patients; otherwise they are independent.
    """
    values, behind = triples[:, 0], sizes(triples)
    value = float(weights @ values)
    room = max(value * (1 - value), 0.0)
    # Of a part at 0 or 1 nothing is known of how it varies: the variance is at least that of parts with the mean's.
    share = _total(weights / np.sqrt(behind), together)
    variance = max(_total(weights * np.sqrt(values * (1 - values) / behind), together), room * share)
    return interval(value, room / variance if room > 0 else 1 / share)


def over_classes(mean: Floats, triples: Floats, *, together: bool = False) -> Floats:
    """Return the mean of classes with its interval, (3,), which is at least that of a sum of independent intervals.

    So a class of few patients, all of them right, counts with what it leaves open (MOVER: Zou and Donner, Statistics in
    Medicine 2008).

    Args:
        mean: The mean with its interval as if classes were alike, (3,).
        triples: The classes' figures with their intervals, (k, 3).
        together: Classes may be of the same patients, and their intervals are added.
    """
    value, low, high = mean
    below, above = (
        math.sqrt(_total(part / len(triples), together))
        for part in (triples[:, 0] - triples[:, 1], triples[:, 2] - triples[:, 0])
    )
    return np.array([value, max(min(low, value - below), 0.0), min(max(high, value + above), 1.0)])


def _total(deviations: Floats, together: bool) -> float:
    """Return the variance of a sum."""
    return float(deviations.sum() ** 2 if together else (deviations**2).sum())


def sizes(triples: Floats) -> Floats:
    """Return the size behind each interval, (k, 3), by bisection; at least 1."""
    from scipy.special import betainc

    value, low, high = triples.T
    least, most = np.zeros(len(value)), np.full(len(value), 30.0)  # natural logarithms
    for _ in range(45):
        middle = (least + most) / 2
        right, wrong = value * np.exp(middle), (1 - value) * np.exp(middle)
        below = betainc(np.maximum(right, TINY), wrong + 1, low) >= TAIL
        above = betainc(right + 1, np.maximum(wrong, TINY), high) <= 1 - TAIL
        wide = (below | (right == 0)) & (above | ((high == 1) & (right > 0)))
        least, most = np.where(wide, middle, least), np.where(wide, most, middle)
    return np.asarray(np.exp(least))
