"""Classes of few images are hidden, and what is shown does not give them away."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift_core.suppression import FEW, HIDDEN, hidden_classes, hide, shown


@pytest.mark.parametrize(
    ("counts", "visible"),
    [
        ((10, 3, 20), (HIDDEN, FEW, 20)),  # 33 less 20 leaves 13 for both
        ((10, 3, 2, 20), (10, FEW, FEW, 20)),  # 5 for two classes: 1 to 4 each
        ((10, 4, 4), (HIDDEN, FEW, FEW)),  # 8 for two classes would be 4 each
        ((0, 5, 9), (0, 5, 9)),
        ((1, 5), (HIDDEN, HIDDEN)),  # 6 for a class below 5 and one from 5 on would be 1 and 5
        ((3, 5, 9), (FEW, 5, HIDDEN)),  # with the class of 5 it would be 8, that is 3 or less
    ],
)
def test_by_hand(counts: tuple[int, ...], visible: tuple[int, ...]) -> None:
    assert hide(counts, 5) == visible
    assert hidden_classes(counts, 5) == [k for k, number in enumerate(visible) if number < 0]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 9))
def test_no_count_below_the_least_is_told_and_others_are_as_they_are(counts: list[int], least: int) -> None:
    visible = hide(counts, least)
    assert not any(0 < number < least for number in visible)
    assert all(now in (number, FEW, HIDDEN) for now, number in zip(visible, counts, strict=True))
    assert (visible == tuple(counts)) == (not any(0 < number < least for number in counts))
    assert all(counts[k] < least for k, number in enumerate(visible) if number == FEW)
    assert all(visible[k] == 0 for k, number in enumerate(counts) if number == 0)  # nothing to hide


@pytest.mark.parametrize("least", [2, 3, 5])
def test_whoever_knows_the_total_cannot_work_out_a_class(least: int) -> None:
    """Of all tables with the same words and the same total, a class of few images has each number it may have."""
    for counts in itertools.chain.from_iterable(itertools.product(range(9), repeat=n) for n in (1, 2, 3)):
        visible = hide(counts, least)
        hidden = sum(counts) - sum(number for number in visible if number > 0)
        may = {FEW: range(1, least), HIDDEN: range(least, hidden + 1)}
        tables = [
            table for table in itertools.product(*(may.get(number, (0,)) for number in visible)) if sum(table) == hidden
        ]
        for k in (k for k, number in enumerate(visible) if number == FEW):
            assert {table[k] for table in tables} == set(range(1, least)), (counts, visible)


def test_for_people() -> None:
    assert [shown(number, 5) for number in (12, 0, FEW, HIDDEN)] == ["12", "0", "<5", "hidden"]
