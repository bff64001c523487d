"""Weighted averages of named arrays: the numbers of NumPy in float64, the types of what came in."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedshift_core.wire.records import decode, encode
from fedshift_strategies.federation import averaging
from fedshift_strategies.federation.averaging import RunningAverage, shares

Arrays = dict[str, NDArray[Any]]


def averaged(replies: list[Arrays], weights: list[float]) -> Arrays:
    average = RunningAverage()
    for arrays, weight in zip(replies, weights, strict=True):
        average.add(arrays, weight)
    return average.result()


# --- shares ----------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=50).filter(any))
def test_shares_are_the_parts_of_the_sum(sizes: list[int]) -> None:
    q = shares(sizes)
    assert sum(q) == pytest.approx(1, rel=1e-12)
    np.testing.assert_allclose(q, np.array(sizes) / sum(sizes), rtol=1e-12)


# --- the average -----------------------------------------------------------------------------------


@given(
    steps=st.lists(st.integers(0, 10**9), min_size=1, max_size=8),
    sizes=st.lists(st.integers(1, 10**5), min_size=8, max_size=8),
    shape=st.sampled_from([(), (2,)]),
)
def test_integers_are_averaged_and_rounded(steps: list[int], sizes: list[int], shape: tuple[int, ...]) -> None:
    """``num_batches_tracked`` is a 0-d int64; a float32 sum would lose whole steps above 2 ** 24."""
    sizes = sizes[: len(steps)]
    got = averaged([{"n": np.full(shape, step, dtype=np.int64)} for step in steps], shares(sizes))["n"]
    assert isinstance(got, np.ndarray)
    assert (got.shape, got.dtype) == (shape, np.dtype(np.int64))
    exact = sum(step * size for step, size in zip(steps, sizes, strict=True)) / sum(sizes)
    assert np.all(np.abs(got - exact) <= 0.5 + 1e-4)


@given(n=st.integers(1, 6), seed=st.integers(0, 10**6))
@settings(max_examples=30)
def test_average_lies_between_the_replies(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = rng.normal(size=(n, 4)).astype(np.float32)
    got = averaged([{"w": array} for array in arrays], shares([int(s) for s in rng.integers(1, 99, size=n)]))["w"]
    assert np.all(got >= arrays.min(axis=0) - 1e-5)
    assert np.all(got <= arrays.max(axis=0) + 1e-5)


def test_one_reply_comes_back_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    reply: Arrays = {"b": rng.normal(size=3).astype(np.float32), "a": rng.normal(size=2), "n": np.array(2**40 + 1)}
    got = averaged([reply], shares([17]))
    assert list(got) == ["b", "a", "n"]
    for name, array in reply.items():
        assert got[name].dtype == array.dtype
        assert np.array_equal(got[name], array)


def test_replies_are_left_as_they_were() -> None:
    """The first reply must not become the accumulator."""
    replies: list[Arrays] = [{"w": np.ones(3, np.float32), "s": np.array(1.0), "n": np.array([1])} for _ in range(3)]
    averaged(replies, [1.0, 1.0, 1.0])
    for reply in replies:
        assert all(np.array_equal(array, np.ones_like(array)) for array in reply.values())


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


@pytest.mark.parametrize("block", [16, 48, 1 << 19])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i8", "u1"])
def test_blocks_change_no_bit(dtype: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(averaging, "BLOCK", block)
    rng = np.random.default_rng(0)
    shapes = [(), (0,), (1,), (7, 5), (3, 4, 2, 2)]
    replies: list[Arrays] = [
        {str(shape): (rng.normal(size=shape) * 100).__abs__().astype(dtype) for shape in shapes} for _ in range(5)
    ]
    replies[1] = {name: np.asfortranarray(array).reshape(array.shape) for name, array in replies[1].items()}
    weights, wanted = shares([5, 2, 9, 1, 3]), at_once(replies, shares([5, 2, 9, 1, 3]))
    average = RunningAverage()
    for arrays, weight in zip(replies, weights, strict=True):
        average.add(decode(encode(arrays)), weight)
    result = {name: array.copy() for name, array in average.result().items()}
    for got in (result, decode(average.record())):
        assert list(got) == list(wanted)
        for name, array in wanted.items():
            assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
            assert got[name].tobytes() == array.tobytes()


def test_another_shape_is_an_error_not_broadcast() -> None:
    average = RunningAverage()
    average.add({"w": np.zeros((2, 3))}, 1.0)
    with pytest.raises(ValueError, match=r"shape \(3,\) cannot be added to sums of shape \(2, 3\)"):
        average.add({"w": np.zeros(3)}, 1.0)
