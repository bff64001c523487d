"""Keeps the executor of a SuperNode running: restarts it when it has ended, after growing pauses.

Without an executor the SuperNode stays connected, takes messages and never answers.
"""

import logging
import subprocess
import time
from collections.abc import Callable
from typing import Any

log = logging.getLogger("fedshift")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds from the end of an executor to the next start
STEADY = 300.0  # seconds of running after which the pause is reset

Process = subprocess.Popen[bytes]


class Keeper:
    """Starts an executor, and restarts it when it has ended.

    Args:
        start: Starts an executor.
        clock: Seconds of a clock that does not jump.
    """

    def __init__(self, start: Callable[..., Process], clock: Callable[[], float] = time.monotonic) -> None:
        self._start, self._clock = start, clock
        self._again: Callable[[], Process] | None = None
        self._process: Process | None = None
        self._began = 0.0
        self._due: float | None = None  # when it is started again; None while it runs
        self._pause = FIRST_PAUSE

    def start(self, command: list[str], **options: Any) -> Process:
        """Start the executor in place of Flower, and keep it running."""
        self._again = lambda: self._start(command, **options)
        self._process, self._began = self._again(), self._clock()
        return self._process

    def look(self) -> None:
        """Restart it if it has ended and its pause is over; the SuperNode calls this between its polls."""
        if self._process is None or self._again is None:
            return
        now = self._clock()
        if self._due is None:
            code = self._process.poll()
            if code is None:
                return
            if now - self._began >= STEADY:
                self._pause = FIRST_PAUSE
            self._due = now + self._pause
            log.warning(
                "the executor of this SuperNode has ended (%s): messages wait; it starts again in %.0f s",
                _how(code), self._pause,
            )  # fmt: skip
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        if now >= self._due:
            self._restart(now)

    def _restart(self, now: float) -> None:
        assert self._again is not None
        try:
            self._process = self._again()
        except OSError as error:  # no memory, no processes
            self._due = now + self._pause
            log.warning("the executor cannot be started (%s): next try in %.0f s", error.strerror, self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            return
        self._began, self._due = now, None
        log.warning("the executor of this SuperNode has started again, process %d", self._process.pid)


def _how(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"exit code {code}"
