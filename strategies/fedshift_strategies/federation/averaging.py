"""Weighted averaging of named arrays, one reply after another, dtype-true."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedshift_core.arrays import Arrays
from fedshift_core.errors import FederationError


class RunningAverage:
    """Sum of weighted arrays with one accumulator; memory holds one array in addition.

    Add in a fixed order: float sums depend on it. Floating arrays keep their dtype; integer arrays
    (BatchNorm's ``num_batches_tracked``) are summed in float64 and rounded back to their own dtype.
    """

    def __init__(self) -> None:
        self._sums: Arrays = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}

    def add(self, arrays: Mapping[str, NDArray[Any]], weight: float) -> None:
        """Add ``weight * arrays``, which are only read; all additions have the same names and shapes."""
        for name, array in arrays.items():
            kind = array.dtype if array.dtype.kind == "f" else np.float64
            term = np.asarray(np.multiply(array, weight, dtype=kind))
            self._sums[name] = np.add(self._sums[name], term, out=self._sums[name]) if name in self._sums else term
            self._dtypes[name] = array.dtype

    def result(self) -> Arrays:
        """Return the sums in the dtypes of the arrays that were added."""
        return {
            name: total if total.dtype == self._dtypes[name] else np.asarray(np.rint(total), self._dtypes[name])
            for name, total in self._sums.items()
        }


def shares(sizes: list[int]) -> list[float]:
    """Return each size over their sum: q_n = |D_n| / |D| (FedAvg, and Eq. 1 of most papers)."""
    total = sum(sizes)
    return [size / total for size in sizes]


def check_merged(merged: ArrayRecord, before: ArrayRecord) -> None:
    """Refuse merged weights that are not the weights of the model.

    Raises:
        FederationError: With the first name that is missing, unknown, or of another shape or type.
    """
    if not isinstance(merged, ArrayRecord):
        raise FederationError(
            f"merge returned a {type(merged).__name__}; expected an ArrayRecord, such as encode(arrays)"
        )
    if strange := [name for name in (*before, *merged) if (name in before) != (name in merged)]:
        lacks = "lack" if strange[0] in before else "have an unknown"
        raise FederationError(f"the merged weights {lacks} {strange[0]!r}; merge must return all shared weights")
    for name, array in merged.items():
        found, expected = ((each.dtype, tuple(each.shape)) for each in (array, before[name]))
        if found != expected:
            raise FederationError(
                f"the merged {name} is of type {found[0]} and shape {found[1]}, the model's is of {expected[0]} and "
                f"{expected[1]}; merge must keep both (array.astype)"
            )
