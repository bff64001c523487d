"""Waits between two polls that grow with the time since the last success."""

import math
import time
from collections.abc import Callable


class Backoff:
    """Waits that are a share of the time since the last success, within bounds.

    A poll is then late by that share at most, and an idle process polls rarely.
    """

    def __init__(
        self,
        least: float,
        most: float,
        *,
        share: float = 0.05,
        politeness: float = 0.0,
        kept: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Begin now.

        Args:
            least: The shortest wait, in seconds.
            most: The longest wait, in seconds.
            share: Share of the time since :meth:`restart` to wait, within the two bounds.
            politeness: Wait at least this multiple of the duration of the poll (up to ``most``), so that a slow server
                is asked less often.
            kept: A poll of so many seconds was kept by the server until there might be something; the next wait is then
                the shortest.
            clock: Seconds of a monotonic clock.
            sleep: Function that waits.
        """
        self._least, self._most, self._share, self._politeness = least, most, share, politeness
        self._kept = kept
        self._clock, self._sleep = clock, sleep
        self.restart()

    def restart(self) -> None:
        """Begin again with short waits, after a success."""
        self._since = self._woke = self._clock()

    def wait(self) -> None:
        """Wait, after a poll without success."""
        now = self._clock()
        took = now - self._woke
        wanted = max(self._share * (now - self._since), self._politeness * took) if took < self._kept else 0.0
        self._sleep(min(max(wanted, self._least), self._most))
        self._woke = self._clock()
