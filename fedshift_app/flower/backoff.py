"""How long to wait before one looks again: a moment at first, longer the longer nothing has come."""

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any


class Backoff:
    """Waits that are a share of the time since something last happened, within bounds.

    What comes is then found late by that share of its own time at most, and who has been idle for long asks seldom.
    """

    def __init__(
        self,
        least: float,
        most: float,
        *,
        share: float = 0.05,
        politeness: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Begin now.

        Args:
            least: The shortest wait, in seconds.
            most: The longest.
            share: Of the time since :meth:`restart`, between the two bounds.
            politeness: Wait at least so many times as long as the look took (up to ``most``): one that has to wait for
                an answer asks a busy server less often.
            clock: Seconds of a clock that does not jump.
            sleep: What waits.
        """
        self._least, self._most, self._share, self._politeness = least, most, share, politeness
        self._clock, self._sleep = clock, sleep
        self.restart()

    def restart(self) -> None:
        """Something has happened, so more may soon."""
        self._since = self._woke = self._clock()

    def wait(self) -> None:
        """Wait, after a look that found nothing."""
        now = self._clock()
        wanted = max(self._share * (now - self._since), self._politeness * (now - self._woke))
        self._sleep(min(max(wanted, self._least), self._most))
        self._woke = self._clock()


class OtherSleep:
    """The module ``time`` with another ``sleep``, for one module of Flower's; all else is as it was."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self.sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class OtherPopen:
    """The module ``subprocess`` with another ``Popen``, likewise."""

    def __init__(self, module: ModuleType, start: Callable[..., Any]) -> None:
        self._module, self.Popen = module, start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
