"""What a node may send: numbers, counts, names and texts within bounds, or it is refused with the reason."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift_wire import bounds
from fedshift_wire.bounds import MOST_TEXT, Refused, check_numbers, largest, plain, whole
from strategies.federation.checks import training_numbers


@given(st.text(max_size=2000), st.integers(10, 600))
def test_what_is_logged_is_one_printable_line_of_bounded_length(text: str, most: int) -> None:
    shown = plain(text, most)
    assert shown.isprintable()
    assert 0 < len(shown) <= max(most, len(plain("")))
    if text.isprintable() and 0 < len(text) <= most:
        assert shown == text


def test_a_refusal_says_no_more_than_may_be_logged() -> None:
    assert str(Refused("two\nlines\x1b[31m" + "x" * 10_000)) == "two lines [31m" + "x" * (MOST_TEXT - 17) + "..."
    assert str(Refused(None)) == "(no reason given)"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 3, 4, 10])
def test_one_number_that_is_not_finite_is_found_in_any_block(
    place: int, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "BLOCK", 16)  # four float32
    most = float(np.finfo(np.float32).max)
    array = np.full(11, most, np.float32)  # their sum is not finite, they are
    assert largest(array) == largest(-array) == most
    array[place] = bad
    assert not math.isfinite(largest(array))
    assert not math.isfinite(largest(array[:, None].T))
    with pytest.raises(Refused, match="w holds numbers that are not finite"):
        check_numbers("w", array, math.inf)


def test_the_largest_of_any_type() -> None:
    assert largest(np.zeros((0, 3))) == 0
    assert largest(np.array(-7)) == 7
    assert largest(np.array([True, False])) == 1
    assert largest(np.array([np.iinfo(np.int64).min])) == 2.0**63  # its own negative, in int64


def test_finite_but_huge_numbers_are_refused_with_the_key_that_allows_them() -> None:
    check_numbers("w", np.array([-1e6, 1e6]), 1e6)
    with pytest.raises(Refused, match=r"w holds 1e\+30, allowed is 1e\+06 at most \(federation.max_value\)"):
        check_numbers("w", np.array([1.0, -1e30], np.float32), 1e6)
    check_numbers("batches", np.array(2**53), 1e6)  # counters may be large
    with pytest.raises(Refused, match="batches holds"):
        check_numbers("batches", np.array(2**53 + 2), 1e6)
    with pytest.raises(Refused, match="complex"):
        check_numbers("w", np.array([1j]), 1e6)


GOOD = {"num-examples": 5, "loss": 1.5, "loss/ce": math.nan, "local-correct/scan": 3, "seconds/data": 1.0, "process": 7}


def test_the_numbers_of_a_reply() -> None:
    number, named = training_numbers(GOOD, 5)
    assert number == 5
    assert named.keys() == {"loss", "loss/ce", "local-correct/scan"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num-examples": 6}, "num-examples is 6, announced were 5"),
        ({"num-examples": 0}, "num-examples is missing or not above 0"),
        ({"num-examples": -1}, "num-examples is missing"),
        ({"num-examples": math.nan}, "num-examples is missing"),
        ({"num-examples": math.inf}, "num-examples is missing"),
        ({"num-examples": [5]}, "num-examples is missing"),
        ({"num-examples": 10**18}, "num-examples is missing"),
        ({"gift": 1.0}, "unknown metric 'gift'"),
        ({"loss/\x1b[2J": 1.0}, r"unknown metric 'loss/ \[2J'"),
        ({"loss/" + "x" * 100: 1.0}, "unknown metric 'loss/xxx"),
        ({"loss": [1.0]}, "loss is not a number"),
        ({f"loss/{i}": 1.0 for i in range(2000)}, "metrics, allowed are 1000"),
    ],
)
def test_a_reply_with_other_numbers_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        training_numbers(GOOD | change, 5)


@pytest.mark.parametrize("value", [True, "3", None, 2.5, -2, 11, math.nan, math.inf, [3]])
def test_what_is_no_whole_number_in_the_range(value: Any) -> None:
    assert whole(value, -1, 10) is None


def test_what_is_a_whole_number() -> None:
    assert [whole(value, -1, 10) for value in (-1, 3.0, 10)] == [-1, 3, 10]
