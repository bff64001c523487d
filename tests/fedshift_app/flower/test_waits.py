"""How long is waited between two looks: by an injected clock, nobody sleeps here."""

import pytest

from fedshift_app.flower.backoff import Backoff
from fedshift_app.flower.patches import Other


class Clock:
    """Time that passes when somebody sleeps, or works."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def backoff(clock: Clock, politeness: float = 0.0) -> Backoff:
    return Backoff(0.05, 3.0, politeness=politeness, clock=clock, sleep=clock.sleep)


def test_waits_grow_with_the_time_since_something_came_and_are_bounded() -> None:
    clock = Clock()
    waits = backoff(clock)
    while clock.now < 1200:
        waits.wait()
    assert clock.waits[:20] == [0.05] * 20
    assert all(b >= a for a, b in zip(clock.waits, clock.waits[1:], strict=False))
    assert clock.waits[-1] == 3.0
    assert len(clock.waits) < 200  # in 200 s; a plain SuperNode asks 67 times, one that never slows down 4,000


def test_what_comes_is_found_late_by_a_twentieth_at_most() -> None:
    clock = Clock()
    waits = backoff(clock)
    while clock.now < 1060:
        before = clock.now - 1000
        waits.wait()
        assert clock.waits[-1] == pytest.approx(max(0.05, 0.05 * before))


def test_after_something_has_come_it_looks_often_again() -> None:
    clock = Clock()
    waits = backoff(clock)
    clock.now += 500
    waits.wait()
    waits.restart()
    waits.wait()
    assert clock.waits == [3.0, 0.05]


def test_a_server_that_answers_slowly_is_asked_less_often() -> None:
    clock = Clock()
    waits = backoff(clock, politeness=4)
    clock.now += 0.25  # the request
    waits.wait()
    clock.now += 60
    waits.wait()
    assert clock.waits == [1.0, 3.0]
    clock.now += 0.001
    waits.restart()
    waits.wait()
    assert clock.waits[-1] == 0.05


def test_only_sleep_is_another() -> None:
    import time

    slept: list[float] = []
    other = Other(time, sleep=slept.append)
    other.sleep(3)
    assert slept == [3]
    assert other.monotonic is time.monotonic
