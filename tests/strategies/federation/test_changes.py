"""What a reply is judged by: the weights that were sent, and what the other nodes contribute."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused, worded

from fedshift_core.arrays import Arrays
from fedshift_core.limits import Refused
from fedshift_strategies.federation import update_norms
from fedshift_strategies.federation.update_norms import SentWeights, far_from_others, norm, out_of_proportion


def model(seed: int = 0, scale: float = 1.0) -> Arrays:
    """Return arrays of several types and layouts, and a counter."""
    rng = np.random.default_rng(seed)
    arrays: Arrays = {
        "w": (rng.normal(size=(7, 5)) * scale).astype(np.float32),
        "half": (rng.normal(size=9) * scale).astype(np.float16),
        "double": np.asfortranarray(rng.normal(size=(3, 4)) * scale),
        "scalar": np.array(scale, np.float32),
        "empty": np.zeros((0, 2), np.float32),
    }
    return arrays | {"n": np.array(40 + seed)}


def slow(arrays: Arrays, less: Arrays) -> float:
    numbers = [(array - less[name].astype(float)).ravel() for name, array in arrays.items() if array.dtype.kind == "f"]
    return float(np.linalg.norm(np.concatenate(numbers)))


@pytest.mark.parametrize("block", [16, 80, 1 << 19])
def test_a_check_takes_the_norm_to_five_digits_whatever_the_block(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_norms, "BLOCK", block)
    for seed in range(3):
        found = SentWeights(model(seed), 100.0).check(model(seed + 1))
        assert found == pytest.approx(slow(model(seed + 1), model(seed)), rel=1e-5)
    with refused(Refused, "1e+30", "federation.max_update"):  # whose squares float32 cannot hold
        SentWeights({"w": np.ones(4, np.float32)}, 2.0).check({"w": np.full(4, 1e30, np.float32)})


# --- weights ---------------------------------------------------------------------------------------


def check(sent: Arrays, got: Arrays, max_update: float = 2.0, noise: float = 0.0) -> None:
    """Check as the server does."""
    assert SentWeights(sent, max_update, noise).check(got) == norm(got, sent)


@pytest.mark.parametrize(
    ("sent", "near", "far"),
    [
        ([3, 4], [3, 14], [3, 15]),  # norm 5: 10 away and 11
        ([0] * 4, [0.9] * 4, [1.1] * 4),  # shorter than 1 counts as 1
        ([1e-9] * 4, [0.9] * 4, [1.1] * 4),
    ],
)
def test_the_ratio_is_that_of_the_change_to_what_was_sent(sent: Any, near: Any, far: Any) -> None:
    sent, near, far = ({"w": np.array(numbers, float)} for numbers in (sent, near, far))
    check(sent, near)
    with refused(Refused, 2.2, "federation.max_update"):
        check(sent, far)


def test_a_counter_is_no_length_but_may_not_leap() -> None:
    sent = {"w": np.ones(2), "n": np.array([3, 1], np.uint64)}
    check(sent, sent | {"n": np.array([3, 10**6], np.uint64)})
    for leap, named in ((9 * 10**15, "9e+15"), (2**52, "4.5e+15")):
        with refused(Refused, "n changed", named, "1e+09"):
            check(sent, sent | {"n": np.array([3, leap], np.uint64)})


def test_a_variance_counts_as_a_deviation() -> None:
    """That of a dark site's images may be many times that of the others, and is no lie."""
    sent = {"bn.weight": np.ones(4), "bn.running_var": np.array([1.0, 4, 9, 0])}
    got = {"bn.weight": np.ones(4), "bn.running_var": np.array([49.0, 4, 9, -9])}
    assert norm(got, sent) == pytest.approx(np.hypot(6, 3))
    check(sent, got)
    with refused(Refused, "federation.max_update"):
        check(sent, got | {"bn.running_var": np.array([1e3, 4, 9, 0])})


def test_noise_that_the_run_asks_for_is_allowed_on_top() -> None:
    rng = np.random.default_rng(0)
    sent = rng.normal(size=10_000) / 100  # norm 1; the noise has 5,000
    noisy = sent + rng.normal(scale=50, size=10_000)
    check({"w": sent}, {"w": noisy}, noise=50)
    for got, noise in ((noisy, 0), (sent + 100, 50)):
        with pytest.raises(Refused):
            check({"w": sent}, {"w": got}, noise=noise)


@given(st.integers(0, 10**6), st.floats(0.01, 30), st.floats(0.1, 10))
def test_the_verdict_is_that_of_the_definition(seed: int, scale: float, max_update: float) -> None:
    """Also where the largest numbers alone let a reply pass."""
    sent, got = model(seed), model(seed + 1, scale)
    got["n"] = sent["n"]
    ratio = slow(got, sent) / max(slow(sent, {name: np.zeros(1) for name in sent}), 1.0)
    far = pytest.raises(Refused, match=r"federation\.max_update")
    with far if ratio > max_update else nullcontext():
        check(sent, got, max_update)


# --- the other nodes' weights ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "images", "most", "far"),
    [
        ([1, 2, 3, 61, 4], 10, 20, "20.3"),
        ([1, 2, 3, 59, 4], 10, 20, ""),
        ([1, 2, 3, 100, 4], 20, 20, ""),  # more images are more steps
        ([1, 2, 3, 121, 4], 20, 20, "40.3"),
        ([1, 2, 3, 61, 4], 1, 20, "20.3"),  # fewer are not held against a node
        ([0.0, 0.0, 0.01, 1.0, 0.01], 10, 20, ""),  # most hardly move, one still learns
        ([0.0, 0.0, 0.0, 1.1], 10, 1, "median"),
        ([0.0, 0.0, 0.0, 9.9], 10, 20, ""),  # the median counts as 10 / 20
        ([0.0, 0.0, 0.0, 10.1], 10, 20, "median"),
        ([0.136, 0.281, 0.071, 2.189], 10, 10, ""),  # FedICON, round 2 on the embedded digits, bf16
        ([1e-9, 1e9], 10, 20, ""),  # two have no median
    ],
)
def test_a_change_is_judged_by_the_median_of_the_others(
    changes: list[float], images: int, most: float, far: str
) -> None:
    """The fourth node is judged; the others have ten images each."""
    result = far_from_others(changes, [10, 10, 10, images, 10][: len(changes)], 10.0, most)
    assert list(result) == ([3] if far else [])
    for why in result.values():
        worded(why, far, "federation.max_update")


# --- contributions ---------------------------------------------------------------------------------


def test_one_that_sends_alone_is_held_against_what_others_sent_before() -> None:
    """A node whose statistics were refused once sends them again when nobody else does."""
    usual: dict[str, list[float]] = {}
    honest, lie = {"means": np.full((2, 4), 5, np.float32)}, {"means": np.full((2, 4), 5e4, np.float32)}
    before = {"means": np.zeros((2, 0), np.float32)}
    assert [*out_of_proportion([honest] * 4 + [lie], 10, usual=usual)] == [4]
    assert [*out_of_proportion([before] * 4 + [lie], 10, usual=usual)] == [4]
    assert out_of_proportion([before] * 4 + [honest], 10, usual=usual) == {}


def test_rows_are_compared_not_how_many_a_node_has() -> None:
    """A node of all classes among such of one; features of ten thousand images among such of ten."""
    few, many = np.zeros((100, 4), np.float32), np.ones((100, 4), np.float32)
    few[7] = 1
    rows = [np.ones((number, 4), np.float32) for number in (10, 10, 10_000, 0)]
    for arrays, far in (([few, few, many], []), (rows, []), ([rows[0], 3 * rows[1], *rows[2:]], [1])):
        assert [*out_of_proportion([{"features": array} for array in arrays], 2)] == far


def contribution(size: float, style: float = 1.0) -> Arrays:
    return {"prototypes": np.full((2, 2), size / 2, np.float32), "counts": np.array([9, 9]), "style": np.array([style])}


def test_a_contribution_is_judged_by_the_median_of_the_others() -> None:
    # Norms 1, 2, 3, 4, 900: the median is 3, and ten times that 30.
    given = [contribution(size) for size in (1, 2, 3, 900, 4)]
    (why,) = out_of_proportion(given, 10).values()
    worded(why, "prototypes", 300, 10, "federation.max_update")
    assert out_of_proportion(given, 300) == {}
    given[1] = contribution(2, style=1e4)
    assert list(out_of_proportion(given, 10)) == [3, 1]
