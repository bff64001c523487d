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

**Digits.** Signed whole numbers z of up to B are summed exactly: :math:`z+B=\sum_jd_j2^{kj}` is several numbers, its
digits :math:`d_j<2^k\le L+1`. Each digit is summed as it is, and the sums are joined,

.. math:: \sum_iz_i=\sum_j2^{kj}\sum_id_{ij}-nB,

which is below :math:`2^{63}` as B is at most :math:`2^{62}/n`, and at most :math:`2^{53}`.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedshift_core.arrays import Arrays
from fedshift_core.errors import RequestError
from fedshift_core.limits import LARGEST_INTEGER
from fedshift_core.secure.crypto import Residues

#: How a contribution is a sum over nodes, by what a node's rows are multiplied:
#:   images: by the node's images of the class, ``counts`` (C,); nodes: by 1 where the node has images of the class,
#:   else by 0; rows: as nodes, and not divided; each: by 1, and divided by the number of nodes; total: by 1, and not
#:   divided. Whole numbers are ``rows`` or ``total``, which alone keep them whole.
Sum = Literal["images", "nodes", "rows", "each", "total"]
SUMS: tuple[Sum, ...] = get_args(Sum)
BY_CLASS = ("images", "nodes", "rows")  # those of which a row is of one class
UNDIVIDED = ("rows", "total")
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
        most: R, the largest absolute value; 0 for counts and for digits.
        digits: Whether it is of signed whole numbers, which travel as digits.
    """

    name: str
    shape: tuple[int, ...]
    most: float
    digits: bool = False

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
        return sum(map(self._length, self.segments))

    @property
    def most_whole(self) -> int:
        """B, the largest absolute value of a whole number that travels as digits."""
        return min(LARGEST_INTEGER, 2**62 // self.nodes)

    @property
    def _bits(self) -> int:
        """k, of a digit."""
        return (self.levels + 1).bit_length() - 1

    @property
    def _places(self) -> range:
        """By how many bits each digit of a whole number is shifted."""
        return range(0, (2 * self.most_whole).bit_length(), self._bits)

    def _length(self, segment: Segment) -> int:
        return segment.size * (len(self._places) if segment.digits else 1)

    def error(self, most: float) -> float:
        """Return by how much a number of this range is off at most."""
        return most / self.levels

    def vector(self, values: Mapping[str, NDArray[Any]]) -> Residues:
        """Return the vector of a node's values, which have the names and shapes of the segments.

        Raises:
            RequestError: If one is not finite, or out of its range.
        """
        return np.concatenate(
            [np.zeros(0, np.uint32), *(self._steps(each, values[each.name]) for each in self.segments)]
        )

    def values(self, total: Residues, number: int) -> Arrays:
        """Return the sums of ``number`` nodes by segment: float64 where it has a range, else int64."""
        sums: Arrays = {}
        ends = np.cumsum([self._length(segment) for segment in self.segments])
        for segment, part in zip(self.segments, np.split(total, ends)[:-1], strict=True):
            if segment.digits:
                sums[segment.name] = self._joined(segment, part, number)
                continue
            whole: NDArray[Any] = part.reshape(segment.shape).astype(np.int64)
            if segment.most:
                whole = (whole - number * (self.levels // 2)) * (2 * segment.most / self.levels)
            sums[segment.name] = whole
        return sums

    def _joined(self, segment: Segment, part: Residues, number: int) -> NDArray[np.int64]:
        """Return the sums of whole numbers of which these are the sums of the digits."""
        rows = part.reshape(len(self._places), *segment.shape).astype(np.uint64)
        joined = np.zeros(segment.shape, np.uint64)
        for place, row in zip(self._places, rows, strict=True):
            joined += row << np.uint64(place)
        return joined.astype(np.int64) - number * self.most_whole

    def _digits(self, segment: Segment, values: NDArray[Any]) -> Residues:
        whole, most = np.asarray(values, np.int64).reshape(-1), self.most_whole
        if not ((whole >= -most) & (whole <= most)).all():
            raise RequestError(
                f"secure sums: {segment.name} holds a number out of range, allowed is {-most:g} to {most:g}"
            )
        shifted, digit = (whole + most).astype(np.uint64), np.uint64(2**self._bits - 1)
        return np.concatenate([(shifted >> np.uint64(place) & digit).astype(np.uint32) for place in self._places])

    def _steps(self, segment: Segment, values: NDArray[Any]) -> Residues:
        if segment.digits:
            return self._digits(segment, values)
        numbers = np.asarray(values, np.float64).reshape(-1)
        least, most = (-segment.most, segment.most) if segment.most else (0.0, float(self.levels))
        if not ((numbers >= least) & (numbers <= most)).all():
            raise RequestError(
                f"secure sums: {segment.name} holds a number out of range, allowed is {least:g} to {most:g}"
                f"{' (federation.secure_sums_range; training diverged?)' if segment.most else ''}"
            )
        if segment.most:
            numbers = np.rint((numbers + most) * (self.levels / (2 * most)))
        return np.minimum(numbers, self.levels).astype(np.uint32)


def layout_of(
    weights: Mapping[str, NDArray[Any]],
    shared: Mapping[str, tuple[int, ...]],
    terms: Sequence[str],
    most: float,
    nodes: int,
    whole: Collection[str] = (),
) -> Layout:
    """Return the layout of what the nodes of a round send.

    Args:
        weights: The shared weights, as they were sent.
        shared: Shapes of what nodes contribute.
        terms: Names of losses.
        most: R of all but arrays of integers.
        nodes: How many nodes send a vector.
        whole: Those that nodes contribute as signed whole numbers.
    """
    segments = [
        Segment(WEIGHTS + name, array.shape, most if array.dtype.kind == "f" else WHOLE_RANGE)
        for name, array in weights.items()
    ]
    for name, shape in shared.items():
        digits = name in whole
        segments.append(Segment(KNOWLEDGE + name, shape, 0.0 if name == COUNTS or digits else most, digits))
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
