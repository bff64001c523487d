"""What a node counts of scored test images besides how many are right, and how that travels. NumPy only.

Counts of parts and of nodes add up; all figures (docs/guide/figures.md) are made of their sums.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_core.arrays import Arrays
from fedshift_core.wire.names import CALIBRATION, CLASS_SCORES, CLASSES, CONFUSION

CALIBRATION_BINS = 15  # of equal width, as Guo et al., ICML 2017, have them
SCORE_BINS = 200
#: Of up to so many classes the matrix and the scores travel, at most 0.5 MB a domain; of more only sums of the matrix.
MOST_CLASSES = 200
#: Bins of scores are this narrow about a guess, in log-odds, times 10 at most; their ends are so far from it.
_FINE, _END = 0.1, 40.0

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Counts:
    """Scored test images of C classes.

    Attributes:
        classes: Of each class how many images there are, how many of them are right, and how often it is predicted,
            (3, C).
        calibration: Of each bin of confidence (the largest softmax probability) how many images there are, how many of
            them are right, and their summed confidence, (3, 15). Bin m holds confidences above m/15, up to (m+1)/15.
        confusion: How often class i is taken for j, (C, C); None of more than ``MOST_CLASSES``.
        scores: Of each class a histogram of its log-odds over the images of the class and over all others, (2, C, B);
            the edges are ``score_edges``. None of more than ``MOST_CLASSES``.
    """

    classes: Ints
    calibration: Floats
    confusion: Ints | None
    scores: Ints | None

    def __add__(self, other: "Counts") -> "Counts":
        sums: list[Any] = [
            None if a is None or b is None else a + b
            for a, b in zip(vars(self).values(), vars(other).values(), strict=True)
        ]
        return Counts(*sums)

    @property
    def images(self) -> int:
        """How many images were scored."""
        return int(self.classes[0].sum())

    def arrays(self, domain: str) -> Arrays:
        """Return what travels, as ``shapes`` has it."""
        counts = {CONFUSION: self.confusion, CLASS_SCORES: self.scores}
        if self.confusion is None:
            counts = {CLASSES: self.classes}
        whole = {name + domain: array.astype(np.int32) for name, array in counts.items() if array is not None}
        return {CALIBRATION + domain: self.calibration, **whole}


def shapes(domain: str, classes: int) -> Mapping[str, tuple[tuple[int, ...], type[np.generic]]]:
    """Return shape and type by name of the arrays that travel of a domain."""
    whole: dict[str, tuple[int, ...]] = {CONFUSION: (classes, classes), CLASS_SCORES: (2, classes, SCORE_BINS)}
    if classes > MOST_CLASSES:
        whole = {CLASSES: (3, classes)}
    return {CALIBRATION + domain: ((3, CALIBRATION_BINS), np.float64)} | {
        name + domain: (shape, np.int32) for name, shape in whole.items()
    }


def from_arrays(arrays: Arrays, domain: str) -> Counts:
    """Return what :meth:`Counts.arrays` wrote; names, shapes and numbers are the caller's to check."""
    calibration = arrays[CALIBRATION + domain].copy()  # not a view of all that came
    if CLASSES + domain in arrays:
        return Counts(arrays[CLASSES + domain].astype(np.int64), calibration, None, None)
    confusion = arrays[CONFUSION + domain].astype(np.int64)
    return Counts(sums_of(confusion), calibration, confusion, arrays[CLASS_SCORES + domain].astype(np.int64))


def sums_of(confusion: Ints) -> Ints:
    """Return what ``Counts.classes`` holds, (3, C), of a confusion matrix (C, C)."""
    return np.stack([confusion.sum(axis=1), confusion.diagonal(), confusion.sum(axis=0)])


@functools.cache
def score_edges(classes: int) -> Floats:
    r"""Return the inner edges of the bins of a class's log-odds, (B - 1,).

    .. math:: s_k=\log\frac{p_k}{1-p_k},\quad s_k+\log(C-1)=0.1\sinh(u)

    with edges at equal distances of u: about p = 1/C, where an untrained network's scores lie close together, a bin is
    0.006 wide; towards 0 and 1, where softmax probabilities crowd, it grows with the distance.
    """
    far = math.asinh(_END / _FINE)
    u = np.linspace(-far, far, SCORE_BINS + 1)[1:-1]
    return _FINE * np.sinh(u) - math.log(max(classes - 1, 1))
