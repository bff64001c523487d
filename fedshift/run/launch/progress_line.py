"""Other displays of a run than a terminal's table: a line of a notebook that is updated in its place, and none."""

import importlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from fedshift.run.launch import progress_table
from fedshift.run.launch.progress_table import LOOK_SECONDS, Screen, Watched, line_of
from fedshift_core.env import LIVE


def in_notebook() -> bool:
    """Tell whether what is printed appears below a cell of a notebook."""
    return "ipykernel" in sys.modules and type(sys.stdout).__module__.startswith("ipykernel.")


def usual() -> AbstractContextManager[Screen]:
    """Return the display for where this process prints: a notebook's line, a terminal's table, or lines."""
    return notebook() if in_notebook() else progress_table.screen()


class Line(Screen):
    """Updates a line below the cell while the run goes on."""

    def __init__(self) -> None:
        super().__init__()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._last = ""

    def watch(self, status_file: Path) -> None:
        """Show the run whose folder ``status_file`` names."""
        self._watched = Watched(status_file)
        self._thread = threading.Thread(target=self._follow, args=(self._watched,), daemon=True)
        self._show(line_of(self._watched))
        self._thread.start()

    def close(self) -> None:
        """Show the run as it has ended."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self, watched: Watched) -> None:
        over = False
        while not over:
            over = self._over.wait(LOOK_SECONDS)
            watched.look()
            self._show(line_of(watched))

    def _show(self, text: str) -> None:
        # There is one wherever there is a notebook; its functions have no types.
        show: Any = importlib.import_module("IPython.display").display

        if text == self._last:
            return
        first, self._last = not self._last, text
        show({"text/plain": text}, raw=True, display_id=f"fedshift-{id(self)}", update=not first)


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
    """Yield a screen that shows nothing, and drops what the run's processes print."""
    yield Screen(out=io.StringIO())
