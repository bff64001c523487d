"""How far a node's reply is from what it is judged by: the weights that were sent, what other nodes contribute.

``federation.max_update`` is one ratio for both. All norms are L2, in float64, over floating-point arrays; what an
array of integers counts (BatchNorm's ``num_batches_tracked``) is no length.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_wire.bounds import BLOCK, LARGEST_COUNT, Refused, largest
from strategies.contributions import WHOLE

Given = Mapping[str, NDArray[Any]]
SHORTEST = 1.0  # weights or contributions shorter than this count as so long: a model may begin with zeros
LUCK = 6  # standard deviations by which the norm of honest noise may exceed its root mean square


class SentWeights:
    """The weights that the nodes of a round were sent.

    Args:
        arrays: By name.
        max_update: How many times their norm the change of a reply may have.
        noise: Standard deviation of what honest nodes add to each weight, because the run asks for it.
    """

    def __init__(self, arrays: Given, max_update: float, noise: float = 0.0) -> None:
        self.arrays = arrays
        self._max_update, self._norm = max_update, norm(arrays)
        number = sum(array.size for array in arrays.values() if array.dtype.kind == "f")
        self._noise = noise * (math.sqrt(number) + LUCK) if noise else 0.0

    def check(self, got: Given, longest: float) -> None:
        """Check how far weights are from those that were sent, which have the same names and shapes.

        Where the longest that they may be says enough, they are not read once more.

        Args:
            got: By name.
            longest: What their norm is at most.

        Raises:
            Refused: If an array of integers changed by more than ``LARGEST_COUNT``; or if the norm of
                (got - sent) is above ``max_update`` times the norm of what was sent, or times 1 if that is shorter,
                plus the norm of the noise that the run asks for.
        """
        for name, array in got.items():
            if array.dtype.kind in "iu":
                counted = largest(array.astype(np.float64) - self.arrays[name])
                if counted > LARGEST_COUNT:
                    raise Refused(f"{name} changed by {counted:.3g} in a round, allowed is {LARGEST_COUNT:g} at most")
        base = max(self._norm, SHORTEST)
        if longest + self._norm <= self._max_update * base:
            return
        found = max(change(got, self.arrays) - self._noise, 0.0) / base
        if found > self._max_update:
            raise Refused(
                f"the weights changed by {found:.3g} times the norm of those that were sent, allowed is "
                f"{self._max_update:g} at most (federation.max_update; training diverged? try a lower train.lr)"
            )


def out_of_proportion(contributions: Sequence[Given], max_update: float) -> dict[int, str]:
    """Find contributions that are far longer than those of the other nodes, which an average would drown in.

    What nodes contribute has no counterpart that was sent, so the norm of each floating-point array is held against
    the median of that norm over the round's nodes, or against 1 if that is less. One node or two are always within
    proportion: their median is no less than half of the longer one.

    Args:
        contributions: Of each node of the round, arrays by name; all have the same names.
        max_update: How many times the median a norm may be.

    Returns:
        Why a contribution must not be used, by its place.
    """
    problems: dict[int, str] = {}
    for name in contributions[0] if contributions else ():
        if name in WHOLE:
            continue
        norms = [norm({name: arrays[name]}) for arrays in contributions]
        middle = max(float(np.median(norms)), SHORTEST)
        for place, found in enumerate(norms):
            if found > max_update * middle:
                problems.setdefault(
                    place,
                    f"the norm of {name} is {found / middle:.3g} times the median of this round's nodes, allowed is "
                    f"{max_update:g} at most (federation.max_update)",
                )
    return problems


def norm(arrays: Given) -> float:
    """Return the norm of all floating-point arrays together."""
    return math.sqrt(math.fsum(_squares(array) for array in arrays.values() if array.dtype.kind == "f"))


def change(got: Given, sent: Given) -> float:
    """Return the norm of (got - sent) over all floating-point arrays; both have the same names and shapes."""
    pairs = ((array, sent[name]) for name, array in got.items() if array.dtype.kind == "f")
    return math.sqrt(math.fsum(_squares(*pair) for pair in pairs))


def _squares(array: NDArray[Any], less: NDArray[Any] | None = None) -> float:
    """Return the sum of the squares of an array, or of what it is more than another; by block, without a copy."""
    flat, other = array.reshape(-1), None if less is None else less.reshape(-1)
    total, scratch = 0.0, np.empty(min(BLOCK // 8, flat.size))
    for start in range(0, flat.size, max(scratch.size, 1)):
        here = slice(start, start + scratch.size)
        part = flat[here]
        taken = 0.0 if other is None else other[here]
        part = np.subtract(part, taken, out=scratch[: part.size], dtype=np.float64)
        total += float(part @ part)
    return total
