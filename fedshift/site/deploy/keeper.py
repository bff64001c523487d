"""Keeps the executor of a SuperNode running: restarts it when it has ended, after a pause.

Without an executor the SuperNode stays connected, takes messages and never answers.
"""

import logging
import subprocess
import time
from collections.abc import Callable
from typing import Any

log = logging.getLogger("fedshift")

PAUSE = 5.0  # seconds from the end of an executor to the next start

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
        self._due: float | None = None  # when it is started again; None while it runs

    def start(self, command: list[str], **options: Any) -> Process:
        """Start the executor in place of Flower, and keep it running."""
        self._again = lambda: self._start(command, **options)
        self._process = self._again()
        return self._process

    def look(self) -> None:
        """Restart it if it has ended and its pause is over; the SuperNode calls this between its polls."""
        now = self._clock()
        if self._process is None or self._again is None:
            return
        if self._due is None and (code := self._process.poll()) is not None:
            how = f"by signal {-code}" if code < 0 else f"exit code {code}"
            self._wait(now, f"the executor of this SuperNode has ended ({how}): messages wait; it starts again in")
        if self._due is None or now < self._due:
            return
        try:
            self._process = self._again()
        except OSError as error:  # no memory, no processes
            self._wait(now, f"the executor cannot be started ({error.strerror}): next try in")
            return
        self._due = None
        log.warning("the executor of this SuperNode has started again, process %d", self._process.pid)

    def _wait(self, now: float, why: str) -> None:
        log.warning("%s %.0f s", why, PAUSE)
        self._due = now + PAUSE
