"""Classes of few images are hidden, and what is shown does not give them away."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift_app.features.site_figures.suppression import FEW, HIDDEN, hide


@pytest.mark.parametrize(
    ("counts", "visible"),
    [
        ((10, 3, 20), (HIDDEN, FEW, 20)),  # 33 less 20 leaves 13 for both
        ((10, 3, 2, 20), (10, FEW, FEW, 20)),  # 5 for two classes: 1 to 4 each
        ((1, 5), (HIDDEN, HIDDEN)),  # 6 for a class below 5 and one from 5 on would be 1 and 5
        ((1, 7, 10), (FEW, HIDDEN, HIDDEN)),  # the class of 10 alone would say that the class of 7 is not enough
    ],
)
def test_by_hand(counts: tuple[int, ...], visible: tuple[int, ...]) -> None:
    assert hide(counts, 5) == visible


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 9))
def test_no_count_below_the_least_is_told_and_others_are_as_they_are(counts: list[int], least: int) -> None:
    visible = hide(counts, least)
    assert not any(0 < number < least for number in visible)
    assert all(now in (number, FEW, HIDDEN) for now, number in zip(visible, counts, strict=True))
    assert (visible == tuple(counts)) == (not any(0 < number < least for number in counts))
    assert all(counts[k] < least for k, number in enumerate(visible) if number == FEW)
    if sum(counts) > len(counts):
        assert all(visible[k] == 0 for k, number in enumerate(counts) if number == 0)  # nothing to hide


@pytest.mark.parametrize(("classes", "least", "most"), [(2, 5, 24), (3, 3, 20), (3, 5, 22), (4, 4, 13), (5, 3, 10)])
def test_whoever_knows_the_total_and_the_rule_cannot_work_out_a_class(classes: int, least: int, most: int) -> None:
    """Of all tables with the same total and the same visible numbers, none says how few images a class has."""
    for total in range(least, most + 1):
        alike: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for counts in _tables(total, classes):
            alike.setdefault(hide(counts, least), []).append(counts)
        for visible, tables in alike.items():
            for k in range(classes):
                may = {counts[k] for counts in tables}
                if visible[k] == FEW:
                    assert may == set(range(1, least)), (visible, tables)
                elif visible[k] == HIDDEN:
                    assert len(may) > 1 or min(may) >= least, (visible, tables)


def _tables(total: int, classes: int) -> Iterator[tuple[int, ...]]:
    """Yield all numbers of images per class with a total."""
    return (counts for counts in itertools.product(range(total + 1), repeat=classes) if sum(counts) == total)
