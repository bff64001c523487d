"""Runs of a sweep or a search that are forked from one process, which has imported torch and the app once for all.

A run begins in milliseconds then, and not after the seconds that its imports take. Only runs of the inline engine: the
processes of a simulation are forked from a server of its own.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from fedshift.lab.grid.sweep.grid import Point
from fedshift.run.launch import forks
from fedshift_app.config import resolving

FEWEST_RUNS = 2  # for fewer there is nothing to gain
#: What draws a report: a run that writes one needs it at its end.
OF_REPORTS = ("fedshift.lab.pages.report.build", "sklearn.manifold", "sklearn.metrics")


@contextmanager
def begun(points: Sequence[Point], env: Mapping[str, str]) -> Iterator[bool]:
    """Start the process that runs are forked from, which imports in the background, and end it with the block.

    Args:
        points: The runs that are left to do; all use the same engine.
        env: Its environment, which decides the number of threads of the libraries in all runs.

    Yields:
        Whether there is one: not for a single run, nor for simulations.
    """
    if len(points) < FEWEST_RUNS or not points[0].is_inline or sys.platform != "linux":
        yield False
        return
    libraries = dict.fromkeys(name for point in points for name in resolving.libraries(point.flat))
    drawn = OF_REPORTS if any(point.launch.get("report") for point in points) else ()
    forks.begin([*forks.OF_RUNS, *libraries, *drawn], env)
    try:
        yield True
    finally:  # it has no run any more
        forks.end()
