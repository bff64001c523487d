"""The progress of a sweep: an estimate of the time left, and a bar over the grid."""

import heapq
import sys
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fedshift_app.run.console import duration

OVERDUE = 0.1  # of its time so far, a run needs at least: one that takes longer than others is not about to end


class Timed(NamedTuple):
    """A run's method, its rounds, and its seconds if it is finished."""

    method: str
    rounds: int
    seconds: float


def time_left(
    finished: Sequence[Timed], running: Sequence[tuple[Timed, float]], waiting: Sequence[Timed], jobs: int
) -> float | None:
    """Return the seconds until a grid is done, from the seconds per round of its finished runs; None without any.

    A method's speed is that of its finished runs, or of all finished runs where it has none. Runs in progress come
    with the seconds since each was started.
    """
    if not finished:
        return None
    left = [max(OVERDUE * since, _expected(run, finished) - since) for run, since in running]
    return makespan([*left, *(_expected(run, finished) for run in waiting)], jobs)


def makespan(seconds: Sequence[float], jobs: int) -> float:
    """Return when the last of these is done, if the next one starts as soon as one of ``jobs`` places is free."""
    free = [0.0] * max(1, jobs)
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)


def _expected(run: Timed, finished: Sequence[Timed]) -> float:
    like = [other for other in finished if other.method == run.method] or finished
    # A run without rounds, which only scores, counts as one.
    return max(run.rounds, 1) * sum(other.seconds for other in like) / sum(max(other.rounds, 1) for other in like)


class Bar(Progress):
    """A progress bar over the grid on standard error, shown only in a terminal."""

    def __init__(self, total: int, finished: int) -> None:
        columns = TextColumn("sweep"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
        # Lines go above the bar where both share a terminal; a file gets them as they are.
        super().__init__(
            *columns,
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
            redirect_stdout=sys.stdout.isatty(),
        )
        self._grid = self.add_task("", total=total, completed=finished)

    def show(self, labels: Sequence[str], left: float | None) -> None:
        """Show the runs in progress and the time left."""
        remaining = "" if left is None else f"left {duration(left)}  "
        self.update(self._grid, description=remaining + ", ".join(labels))

    def count(self) -> None:
        """Count a finished run."""
        self.advance(self._grid)
