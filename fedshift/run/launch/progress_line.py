"""Other displays of a run than a terminal's table: a line of a notebook that is updated in its place, and none."""

import importlib
import io
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

from fedshift.run.launch import log_filter, progress_table
from fedshift.run.launch.progress_table import LOOK_SECONDS, Screen, Watched
from fedshift_app.run.console import duration
from fedshift_core.accuracies import average, percent
from fedshift_core.env import LIVE
from fedshift_core.limits import MOST_NAME, plain

CELLS = 20  # of the bar
_ROUND = re.compile(r"round +\d+/\d+  ")  # the line of a round (``console.round_line``)


def in_notebook() -> bool:
    """Tell whether what is printed appears below a cell of a notebook."""
    return "ipykernel" in sys.modules and type(sys.stdout).__module__.startswith("ipykernel.")


def usual() -> AbstractContextManager[Screen]:
    """Return the display for where this process prints: a notebook's line, a terminal's table, or lines."""
    return notebook() if in_notebook() else progress_table.screen()


def line_of(run_status: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> str:
    """Return how a run stands in a line: a bar, the round, the average and the worst domain, the time left.

    Args:
        run_status: ``status.json``; empty before the run has begun.
        rounds: The lines of ``metrics.jsonl``, one per full round.
    """
    if not run_status:
        return "the run is being prepared"
    done, total = len(rounds), max(int(run_status.get("rounds") or 0), 1)
    bar = ("#" * (CELLS * min(done, total) // total)).ljust(CELLS, ".")
    parts = [f"{run_status.get('method')} on {run_status.get('experiment')}", f"[{bar}] {done}/{total}"]
    scored = [line["accuracy"] for line in rounds if line["accuracy"]]
    if scored:
        parts.append(f"avg {percent(average(scored[-1]))}")
        known = {name: value for name, value in scored[-1].items() if value is not None}
        if known:
            least = min(known, key=lambda name: known[name])
            parts.append(f"worst {plain(least, MOST_NAME)} {percent(known[least])}")
    left = run_status.get("seconds_left")
    if left:
        parts.append(f"left {duration(left)}")
    return "  ".join([*parts, str(run_status.get("state"))])


class Line(Screen):
    """Updates a line below the cell while the run goes on."""

    def __init__(self) -> None:
        super().__init__(None)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._last = ""

    def watch(self, status_file: Path) -> None:
        """Show the run whose folder ``status_file`` names."""
        self._watched = watched = Watched(status_file)
        self._thread = threading.Thread(target=self._follow, args=(watched,), daemon=True)
        self._show(line_of({}, ()))
        self._thread.start()

    def call(self, command: Sequence[str], folder: Path, env: Mapping[str, str], *, early: bool = False) -> int:
        """Run a program to its end and print its lines but those of rounds; as ``log_filter.call``."""
        out = cast(TextIO, _WithoutRounds(sys.stdout))
        return log_filter.call(command, folder, env, out, sys.stderr, early=early)

    def close(self) -> None:
        """Show the run as it has ended."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self, watched: Watched) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self._look(watched)
        self._look(watched)

    def _look(self, watched: Watched) -> None:
        watched.look()
        features = watched.features
        if features:
            self._show(f"features of images, computed once: {features['done']:,} of {features['of']:,}")
        else:
            self._show(line_of(watched.status, watched.rounds))

    def _show(self, text: str) -> None:
        # There is one wherever there is a notebook; its functions have no types.
        show: Any = importlib.import_module("IPython.display").display

        if text == self._last:
            return
        first, self._last = not self._last, text
        show({"text/plain": text}, raw=True, display_id=f"fedshift-{id(self)}", update=not first)


class _WithoutRounds:
    """A stream that drops the lines of rounds, which a line that is updated shows."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a line, unless it is of a round."""
        return len(text) if _ROUND.match(text) else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Silent(Screen):
    """Shows nothing of a run, and drops what its processes print."""

    def __init__(self) -> None:
        super().__init__(None)

    def call(self, command: Sequence[str], folder: Path, env: Mapping[str, str], *, early: bool = False) -> int:
        """Run a program to its end; arguments and result as ``log_filter.call``."""
        return log_filter.call(command, folder, env, io.StringIO(), io.StringIO(), early=early)


@contextmanager
def notebook() -> Iterator[Screen]:
    """Yield a screen for one run in a notebook; its line replaces the lines of the rounds."""
    line = Line()
    os.environ[LIVE] = "1"
    try:
        yield line
    finally:
        del os.environ[LIVE]
        line.close()


@contextmanager
def silent() -> Iterator[Screen]:
    """Yield a screen that shows nothing."""
    yield Silent()
