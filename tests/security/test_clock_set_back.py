"""A clock is set back, or jumps, so that what was spent would be of another day."""

from dataclasses import replace
from pathlib import Path

from fedshift_app.node.ledger import DAY, Ledger


def test_rounds_and_runs_from_the_future_count_as_of_today(tmp_path: Path) -> None:
    own = Ledger(tmp_path / "a.json", clock=lambda: 10 * DAY)
    own.charge("run", 0.0, lambda book, now: "")
    own.change(lambda book, now: book.asked("run", "q", now))
    back = replace(own, clock=lambda: 3 * DAY)
    book = back.read()
    assert book.rounds_of_day(3 * DAY) == 1
    assert book.exhausted("other", "q", None, 1, 3 * DAY)
    assert back.refused(lambda book, now: "spent" if book.rounds_of_day(now) >= 1 else "") == "spent"
    back.charge("run", 0.0, lambda book, now: "")
    back.change(lambda book, now: book.asked("run", "r", now))
    assert back.read().rounds_of_day(3 * DAY) == 2  # what lies ahead is not forgotten when something is written
    assert back.read().exhausted("run", "s", 2, None, 3 * DAY)
