"""A clock is set back, or jumps, so that what was spent would be of another day."""

from dataclasses import replace
from pathlib import Path

from real_node import charge

from fedshift_app.node.ledger import DAY, Ledger


def test_rounds_and_runs_from_the_future_count_as_of_today(tmp_path: Path) -> None:
    own = Ledger(tmp_path / "a.json", clock=lambda: 10 * DAY)
    charge(own, "run", 0.0)
    own.change(lambda book, now: book.asked("run", "q", now))
    back = replace(own, clock=lambda: 3 * DAY)
    book = back.read()
    assert book.rounds_of_day(3 * DAY) == 1
    assert book.exhausted("other", "q", None, 1, 3 * DAY)
    charge(back, "run", 0.0)
    back.change(lambda book, now: book.asked("run", "r", now))
    assert back.read().rounds_of_day(3 * DAY) == 2  # what lies ahead is not forgotten when something is written
    assert back.read().exhausted("run", "s", 2, None, 3 * DAY)
