"""Runs of a sweep or a search that are forked from one process, which has imported torch and the app once for all.

A run begins in milliseconds then, and not after the seconds that its imports take. Only runs of the inline engine: the
processes of a simulation are forked from a server of its own.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fedshift.lab.grid.sweep.grid import Point
from fedshift.run.launch import fork_server, forked, local_superlink
from fedshift_app.config import resolving
from fedshift_core.env import FORK_SERVER

FEWEST_RUNS = 2  # for fewer there is nothing to gain
#: What draws a report: a run that writes one needs it at its end.
OF_REPORTS = ("fedshift.lab.pages.report.build", "sklearn.manifold", "sklearn.metrics")


@dataclass(frozen=True)
class Forks:
    """The process that runs are forked from.

    Attributes:
        address: Its socket; None where each run is a process of its own.
    """

    address: str | None = None

    def command(self, plain: Sequence[str]) -> list[str]:
        """Return the command that starts a run, which ``plain`` starts without a fork; its arguments follow."""
        return list(plain) if self.address is None else forked.command(forked.RUN)

    @property
    def env(self) -> dict[str, str]:
        """What the environment of a run has to say."""
        return {} if self.address is None else {FORK_SERVER: self.address}


NO_FORKS = Forks()


@contextmanager
def begun(points: Sequence[Point], env: Mapping[str, str]) -> Iterator[Forks]:
    """Start the process that runs are forked from, which imports in the background, and end it with the block.

    Where it cannot start or is ended, runs start as processes of their own.

    Args:
        points: The runs that are left to do; all use the same engine.
        env: Its environment, which decides the number of threads of the libraries in all runs.
    """
    if len(points) < FEWEST_RUNS or not points[0].is_inline or sys.platform != "linux":
        yield NO_FORKS
        return
    libraries = dict.fromkeys(name for point in points for name in resolving.libraries(point.flat))
    later = OF_REPORTS if any(point.launch.get("report") for point in points) else ()
    with local_superlink.temporary_folder() as home, (home / "log").open("ab") as log:
        address = str(home / "forks")
        with fork_server.listening(address) as listener:  # now, so that the first run finds it
            served = [str(listener.fileno()), forked.RUN, *libraries, fork_server.LATER, *later]
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fedshift.run.launch.fork_server", *served], env=dict(env),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                pass_fds=[listener.fileno()],
            )  # fmt: skip
        try:
            yield Forks(address)
        finally:  # it has no run any more
            process.kill()
            process.wait()
