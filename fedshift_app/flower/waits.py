"""Waits between two polls, which grow with the time since the last success."""

import time
from collections.abc import Callable
from typing import Any


class Backoff:
    """Waits that are a twentieth of the time since the last success, within bounds.

    A poll is late by that share at most, and an idle process polls rarely.

    Args:
        least: The shortest wait, in seconds.
        most: The longest wait.
        politeness: Wait at least this multiple of the duration of the poll, so that a slow server is asked less often.
        clock: Seconds of a monotonic clock.
        sleep: Function that waits.
    """

    def __init__(
        self,
        least: float,
        most: float,
        *,
        politeness: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._least, self._most, self._politeness = least, most, politeness
        self._clock, self._sleep = clock, sleep
        self.restart()

    def restart(self) -> None:
        """Begin again with short waits, after a success."""
        self._since = self._woke = self._clock()

    def wait(self) -> None:
        """Wait, after a poll without success."""
        now = self._clock()
        wanted = max(0.05 * (now - self._since), self._politeness * (now - self._woke))
        self._sleep(min(max(wanted, self._least), self._most))
        self._woke = self._clock()


class Time:
    """The module ``time`` with another ``sleep``, for a module of Flower."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self.sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)
