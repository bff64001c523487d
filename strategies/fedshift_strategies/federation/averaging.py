"""Weighted averaging of named arrays, one reply after another, dtype-true."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedshift_core.arrays import Arrays
from fedshift_core.errors import FederationError
from fedshift_core.limits import BLOCK
from fedshift_core.wire.records import Draft, encode_array


class RunningAverage:
    """Sum of weighted arrays with one accumulator; memory holds one block in addition.

    Add in a fixed order: float sums depend on it. Floating arrays keep their dtype; integer arrays
    (BatchNorm's ``num_batches_tracked``) are summed in float64 and rounded back to their own dtype.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Draft] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._scratch = np.empty(BLOCK, np.uint8)

    def add(self, arrays: Mapping[str, NDArray[Any]], weight: float) -> None:
        """Add ``weight * arrays``, which are only read; all additions have the same names and shapes."""
        for name, array in arrays.items():
            floating = array.dtype.kind == "f"
            dtype = array.dtype if floating else np.dtype(np.float64)
            if name in self._sums:
                self._add(self._sums[name].array, array, weight)
            else:
                self._sums[name], self._dtypes[name] = Draft(array.shape, dtype), array.dtype
                np.multiply(array, weight, out=self._sums[name].array, dtype=dtype)

    def result(self) -> Arrays:
        """Return the sums in the dtypes of the arrays that were added."""
        return {name: self._back(sums.array, self._dtypes[name]) for name, sums in self._sums.items()}

    def record(self) -> ArrayRecord:
        """Return what :meth:`result` returns as it travels; floating sums are handed over, so this ends the average."""
        record = {}
        for name, dtype in self._dtypes.items():
            sums = self._sums.pop(name)
            is_result = sums.array.dtype == dtype
            record[name] = sums.finish() if is_result else encode_array(name, self._back(sums.array, dtype))
        return ArrayRecord(record)

    def _add(self, total: NDArray[Any], array: NDArray[Any], weight: float) -> None:
        """Add ``weight * array`` to ``total``, both of one shape, by block. Each term is rounded before it is added."""
        if array.shape != total.shape:
            raise ValueError(f"an array of shape {array.shape} cannot be added to sums of shape {total.shape}")
        terms = self._scratch.view(total.dtype)
        sums, flat = total.reshape(-1), array.reshape(-1)
        for start in range(0, total.size, terms.size):
            part = flat[start : start + terms.size]
            term = np.multiply(part, weight, out=terms[: part.size], dtype=total.dtype)
            into = sums[start : start + terms.size]
            np.add(into, term, out=into)

    @staticmethod
    def _back(total: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        if dtype == total.dtype:
            return total
        return np.asarray(np.rint(total), dtype=dtype)


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
