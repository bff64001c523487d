r"""Arrays of a node as one vector of whole numbers modulo 2^32, and the sum of such vectors as arrays again.

With n nodes there are L steps, the largest even number of at most :math:`(2^{32}-1)/n`, so that the sum of n numbers
from 0 to L is below 2^32 and nothing wraps. A real number x of range R, :math:`|x|\le R`, becomes

.. math:: q(x)=\mathrm{rint}\big((x+R)\,L/2R\big)\in\{0,\dots,L\},\qquad \hat x=(q-L/2)\cdot2R/L

**Zero.** L is even, so :math:`q(0)=L/2` is a whole number and :math:`\hat 0=0`: what no node changes stays as it is, in
any number of rounds. (With an odd L each node is off by R/L, all to the same side.)

**Bound.** Rounding moves :math:`(x+R)L/2R` by 1/2 at most, so :math:`|\hat x-x|\le R/L`. Whole numbers are summed
exactly, so the sum over m of the nodes is off by at most :math:`mR/L`, and their mean with weights :math:`f_k` by
:math:`mR/(L\sum_kf_k)`; to which comes the rounding of float64, less than :math:`2^{-18}` of it. Rounding goes to the
nearest (Flower's is drawn from NumPy's global generator): a vector is the same bits wherever it is computed.

Whole numbers of a segment without a range (counts, 0 to L) are summed as they are.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedshift_core.arrays import Arrays
from fedshift_core.errors import RequestError
from fedshift_core.limits import BLOCK
from fedshift_core.secure.crypto import Residues

#: How a contribution is a sum over nodes, by what a node's rows are multiplied:
#:   images: by the node's images of the class, ``counts`` (C,); nodes: by 1 where the node has images of the class,
#:   else by 0; each: by 1, and divided by the number of nodes; total: by 1, and not divided.
Sum = Literal["images", "nodes", "each", "total"]
SUMS: tuple[Sum, ...] = get_args(Sum)
BY_CLASS = ("images", "nodes")  # those of which a row is of one class
COUNTS = "counts"
#: Range of the change of an array of integers, such as BatchNorm's number of batches.
WHOLE_RANGE = float(2**20)
LEAST_RANGE = 64.0  # of numbers of about 1
WEIGHTS, KNOWLEDGE, LOSSES, REPORTS = "arrays/", "knowledge/", "loss/", "reports/"  # how names of segments begin


@dataclass(frozen=True)
class Segment:
    """Some numbers of the vector.

    Attributes:
        name: Their name.
        shape: Their shape.
        most: R, the largest absolute value; 0 for counts.
    """

    name: str
    shape: tuple[int, ...]
    most: float

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """What is where in the vector.

    Attributes:
        segments: In their order.
        nodes: n, how many vectors are summed at most.
    """

    segments: tuple[Segment, ...]
    nodes: int

    @property
    def levels(self) -> int:
        """L, the largest number that a node may have in the vector."""
        return (2**32 - 1) // self.nodes // 2 * 2

    @property
    def size(self) -> int:
        """How many numbers the vector has."""
        return sum(segment.size for segment in self.segments)

    def error(self, most: float) -> float:
        """Return by how much a number of this range is off at most."""
        return most / self.levels

    def vector(self, values: Mapping[str, NDArray[Any]]) -> Residues:
        """Return the vector of a node's values, which have the names and shapes of the segments.

        Raises:
            RequestError: If one is not finite, or out of its range.
        """
        vector = np.empty(self.size, np.uint32)
        start = 0
        for segment in self.segments:
            here = vector[start : start + segment.size]
            self._write(segment, np.asarray(values[segment.name]).reshape(-1), here)
            start += segment.size
        return vector

    def values(self, total: Residues, number: int) -> Arrays:
        """Return the sums of ``number`` nodes by segment: float64 where it has a range, else int64."""
        sums: Arrays = {}
        start = 0
        for segment in self.segments:
            part = total[start : start + segment.size].reshape(segment.shape)
            if segment.most:
                steps = part.astype(np.int64) - number * (self.levels // 2)
                sums[segment.name] = steps * (2 * segment.most / self.levels)
            else:
                sums[segment.name] = part.astype(np.int64)
            start += segment.size
        return sums

    def _write(self, segment: Segment, values: NDArray[Any], here: Residues) -> None:
        step = BLOCK // 8
        least, most = (-segment.most, segment.most) if segment.most else (0.0, float(self.levels))
        for start in range(0, values.size, step):
            part = values[start : start + step].astype(np.float64)
            if not ((part >= least) & (part <= most)).all():
                raise RequestError(
                    f"secure sums: {segment.name} holds a number out of range, allowed is {least:g} to {most:g}"
                    f"{' (federation.secure_sums_range; training diverged?)' if segment.most else ''}"
                )
            if segment.most:
                part = np.rint((part + segment.most) * (self.levels / (2 * segment.most)))
            here[start : start + step] = np.minimum(part, self.levels)


def layout_of(
    weights: Mapping[str, NDArray[Any]], shared: Mapping[str, tuple[int, ...]], terms: Sequence[str], most: float,
    nodes: int,
) -> Layout:  # fmt: skip
    """Return the layout of what the nodes of a round send.

    Args:
        weights: The shared weights, as they were sent.
        shared: Shapes of what nodes contribute.
        terms: Names of losses.
        most: R of all but arrays of integers.
        nodes: How many nodes send a vector.
    """
    segments = [
        Segment(WEIGHTS + name, array.shape, most if array.dtype.kind == "f" else WHOLE_RANGE)
        for name, array in weights.items()
    ]
    for name, shape in shared.items():
        segments.append(Segment(KNOWLEDGE + name, shape, 0.0 if name == COUNTS else most))
    for term in terms:
        segments += [Segment(LOSSES + term, (), most), Segment(REPORTS + term, (), 1.0)]
    return Layout(tuple(segments), nodes)


def range_of_answers(most: float) -> float:
    """Return R of numbers of about 1, in a run whose weights have this range: a small one would leave them no room."""
    return max(most, LEAST_RANGE)


def of_powers(sizes: Mapping[str, int], powers: Mapping[str, int], most: float, nodes: int) -> Layout:
    """Return the layout of means of powers of numbers of about 1.

    Args:
        sizes: C by name.
        powers: Which power each is a mean of, by name.
        most: R of the run's weights.
        nodes: How many nodes send a vector.
    """
    most = range_of_answers(most)
    return Layout(tuple(Segment(name, (size,), most ** powers[name]) for name, size in sizes.items()), nodes)


def has_rows(sums: Mapping[str, Sum]) -> bool:
    """Return whether some contributions have rows of single classes."""
    return any(how in BY_CLASS for how in sums.values())


def row_weights(sums: Sum, counts: NDArray[np.int64], largest: int, ndim: int) -> NDArray[Any] | float:
    """Return by what a node multiplies a contribution, in the form that its array takes; at most 1.

    Args:
        sums: How it is a sum.
        counts: The node's images by class, (C,).
        largest: The largest number of images of a node.
        ndim: Dimensions of the array.
    """
    if sums not in BY_CLASS:
        return 1.0
    rows = counts / largest if sums == "images" else (counts > 0).astype(np.float64)
    return np.asarray(rows).reshape(-1, *(1,) * (ndim - 1))


def written(sums: Mapping[str, Sum]) -> list[str]:
    """Return how contributions are sums as it travels: ``prototypes=images``."""
    return [f"{name}={how}" for name, how in sums.items()]


def read(entries: Iterable[str]) -> dict[str, Sum]:
    """Return what :func:`written` was given.

    Raises:
        RequestError: If an entry is another.
    """
    sums: dict[str, Sum] = {}
    for entry in entries:
        name, _, how = entry.rpartition("=")
        known = next((kind for kind in SUMS if kind == how), None)
        if not name or known is None:
            raise RequestError(f"secure sums: {entry[:80]!r} is no NAME=KIND; a kind is {', '.join(SUMS)}")
        sums[name] = known
    return sums
