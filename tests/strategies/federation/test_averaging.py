"""Weighted averages of named arrays: the numbers of NumPy in float64, the types of what came in."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedshift_core.wire.records import decode, encode
from fedshift_strategies.federation.averaging import RunningAverage, shares

Arrays = dict[str, NDArray[Any]]


# --- shares ----------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=50).filter(any))
def test_shares_are_the_parts_of_the_sum(sizes: list[int]) -> None:
    q = shares(sizes)
    assert sum(q) == pytest.approx(1, rel=1e-12)
    np.testing.assert_allclose(q, np.array(sizes) / sum(sizes), rtol=1e-12)


# --- the average -----------------------------------------------------------------------------------


# --- blocks ----------------------------------------------------------------------------------------


def at_once(replies: list[Arrays], weights: list[float]) -> Arrays:
    """Average without blocks: a whole term, then the sum."""
    sums: Arrays = {}
    for arrays, weight in zip(replies, weights, strict=True):
        for name, array in arrays.items():
            dtype = array.dtype if array.dtype.kind == "f" else np.dtype(np.float64)
            term = np.multiply(array, weight, dtype=dtype)
            sums[name] = sums[name] + term if name in sums else term
    types = {name: array.dtype for name, array in replies[0].items()}
    return {
        name: np.asarray(total if types[name].kind == "f" else np.rint(total), types[name])
        for name, total in sums.items()
    }


@pytest.mark.parametrize(("dtype", "scale"), [("f2", 1e2), ("f4", 1e2), ("f8", 1e2), ("i8", 1e9), ("u1", 50)])
def test_sums_are_those_of_all_at_once(dtype: str, scale: float) -> None:
    """Integers such as ``num_batches_tracked`` too, of which a float32 sum would lose steps; replies are only read."""
    rng = np.random.default_rng(0)
    shapes = [(), (0,), (1,), (7, 5), (3, 4, 2, 2)]
    replies: list[Arrays] = [
        {str(shape): np.abs(rng.normal(size=shape) * scale).astype(dtype) for shape in shapes} for _ in range(5)
    ]
    replies[1] = {name: np.asfortranarray(array).reshape(array.shape) for name, array in replies[1].items()}
    weights = shares([5, 2, 9, 1, 3])
    wanted = at_once(replies, weights)
    average = RunningAverage()
    for arrays, weight in zip(replies, weights, strict=True):
        average.add(arrays if weight == 0.25 else decode(encode(arrays)), weight)
    got = average.result()
    assert list(got) == list(wanted)
    for name, array in wanted.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        assert got[name].tobytes() == array.tobytes()
    assert all(np.array_equal(array, at_once(replies, weights)[name]) for name, array in wanted.items())
