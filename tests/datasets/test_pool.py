"""Files are read in processes: results in the order of the files, and one that ends its process is refused."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift_core.errors import DataError
from fedshift_datasets.io import pool

ENDS = "__import__('os').kill(__import__('os').getpid(), 11)"


@settings(max_examples=20, deadline=None)
@given(count=st.integers(0, 120), workers=st.integers(1, 3))
def test_results_are_in_the_order_of_the_items(count: int, workers: int) -> None:
    assert list(pool.mapped(len, ("a" * number for number in range(count)), workers)) == list(range(count))


def test_the_first_error_ends_it() -> None:
    items = ["1"] * 150 + ["1 / 0", "1", "None.gone"] + ["1"] * 10_000
    rest = pool.mapped(eval, items, 2)
    assert [next(rest) for _ in range(150)] == [1] * 150
    with pytest.raises(DataError, match=r"1 / 0: cannot be read \(ZeroDivisionError"):
        next(rest)


@pytest.mark.parametrize("place", [pytest.param(0, marks=pytest.mark.long), 7, 39])
def test_a_file_that_ends_its_process_is_named_and_the_others_are_read(place: int) -> None:
    items = [str(number) for number in range(40)]
    items[place] = ENDS
    made = list(pool.tried(eval, items, 2))
    error = str(made.pop(place))
    assert error.startswith(f"{ENDS}: cannot be read (") and "SIGSEGV" in error
    assert made == [number for number in range(40) if number != place]


def test_a_file_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "LONGEST", 5.0)
    (made,) = pool.tried(eval, ["__import__('time').sleep(1000)"], 1)
    assert "SIGKILL" in str(made)


def test_few_processes_stay_and_none_outlives_its_program() -> None:
    assert len(set(pool.mapped(eval, ["__import__('os').getpid()"] * 200, 4)) - {os.getpid()}) >= 1
    assert 0 < len(pool._idle) <= pool.KEPT
    (code,) = {process._process.poll() for process in pool._idle}
    assert code is None
    (number,) = pool.mapped(eval, ["__import__('os').getpid()"], 1)
    child = os.fork()
    if not child:  # a fork has none of them
        os._exit(len(pool._idle))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert next(pool.mapped(eval, ["__import__('os').getpid()"], 1)) == number
