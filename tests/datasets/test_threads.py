"""Work on many files: the same results in the same order, in threads or not."""

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift_datasets.io import threads


@given(count=st.integers(0, 120), workers=st.integers(1, 3), worth=st.sampled_from([0.0, math.inf]))
def test_results_are_in_the_order_of_the_items(count: int, workers: int, worth: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "WORTH", worth)
        assert list(threads.mapped(str, iter(range(count)), workers)) == [str(number) for number in range(count)]


@pytest.mark.parametrize(("worth", "workers", "others"), [(0.0, 2, True), (0.0, 1, False), (math.inf, 2, False)])
def test_only_calls_that_take_long_go_to_threads(
    worth: float, workers: int, others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "WORTH", worth)
    ran = list(threads.mapped(lambda _: threading.get_ident(), range(200), workers))
    here = threading.get_ident()
    assert ran[0] == here
    assert any(one != here for one in ran) == others


@pytest.mark.parametrize("worth", [0.0, math.inf])
def test_the_first_error_ends_it(worth: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "WORTH", worth)
    done = set()

    def work(number: int) -> int:
        if number in (150, 170):
            raise ValueError(f"number {number}")
        done.add(number)
        return number

    with pytest.raises(ValueError, match="number 150"):
        list(threads.mapped(work, range(100_000), 2))
    assert set(range(150)) <= done and len(done) < 100_000


def test_slow_first_calls_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "TRIED_SECONDS", 0.0)
    monkeypatch.setattr(threads, "WORTH", 0.0)
    ran = list(threads.mapped(lambda _: threading.get_ident(), range(100), 2))
    assert ran[: threads.FEWEST] == [threading.get_ident()] * threads.FEWEST
    assert threading.get_ident() not in ran[threads.FEWEST :]
