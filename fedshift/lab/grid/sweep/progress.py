"""The progress of a sweep: an estimate of the time left, and a bar over the grid."""

import heapq
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fedshift_app.run.console import duration

if TYPE_CHECKING:
    from fedshift.lab.grid.sweep.records import Record

OVERDUE = 0.1  # of its time so far, a run needs at least: one that takes longer than others is not about to end


def time_left(
    finished: "Sequence[Record]", running: "Sequence[Record]", waiting: "Sequence[Record]", jobs: int
) -> float | None:
    """Return the seconds until a grid is done, from the seconds per round of its finished runs; None without any.

    A method's speed is that of its finished runs, or of all finished runs where it has none.
    """
    if not finished:
        return None
    since = [(record, record.child.seconds) for record in running if record.child is not None]
    left = [max(OVERDUE * seconds, _expected(record, finished) - seconds) for record, seconds in since]
    return makespan([*left, *(_expected(record, finished) for record in waiting)], jobs)


def makespan(seconds: Sequence[float], jobs: int) -> float:
    """Return when the last of these is done, if the next one starts as soon as one of ``jobs`` places is free."""
    free = [0.0] * max(1, jobs)
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)


def _expected(record: "Record", finished: "Sequence[Record]") -> float:
    method = record.point.config.method["name"]
    like = [other for other in finished if other.point.config.method["name"] == method] or finished
    return record.rounds * sum(other.seconds for other in like) / sum(other.rounds for other in like)


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
        self.grid = self.add_task("", total=total, completed=finished)

    def show(self, labels: Sequence[str], left: float | None) -> None:
        """Show the runs in progress and the time left."""
        remaining = "" if left is None else f"left {duration(left)}  "
        self.update(self.grid, description=remaining + ", ".join(labels))
