"""Weighted averaging of named arrays, one reply after another, dtype-true."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


class RunningAverage:
    """Sum of weighted arrays with one accumulator, so that memory holds no copy of each reply.

    Add in a fixed order: float sums depend on it. Floating arrays keep their dtype; integer arrays
    (BatchNorm's ``num_batches_tracked``) are summed in float64 and rounded back to their own dtype.
    """

    def __init__(self) -> None:
        self._sums: Arrays = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}

    def add(self, arrays: Mapping[str, NDArray[Any]], weight: float) -> None:
        """Add ``weight * arrays``; all additions have the same names and shapes."""
        for name, array in arrays.items():
            floating = np.issubdtype(array.dtype, np.floating)
            dtype = array.dtype if floating else np.dtype(np.float64)
            term = np.multiply(array, weight, dtype=dtype)
            if name in self._sums:
                self._sums[name] += term
            else:
                self._sums[name], self._dtypes[name] = np.asarray(term), array.dtype

    def result(self) -> Arrays:
        """Return the sums in the dtypes of the arrays that were added."""
        return {name: self._back(total, self._dtypes[name]) for name, total in self._sums.items()}

    @staticmethod
    def _back(total: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        if np.issubdtype(dtype, np.floating):
            return total
        return np.asarray(np.rint(total), dtype=dtype)


def shares(sizes: list[int]) -> list[float]:
    """Return each size over their sum: q_n = |D_n| / |D| (FedAvg, and Eq. 1 of most papers)."""
    total = sum(sizes)
    return [size / total for size in sizes]
