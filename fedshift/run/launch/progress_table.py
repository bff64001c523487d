"""A live table of a run, for terminals; elsewhere the console prints lines.

It reads the files of the run folder, so it is the same for every engine, wherever the ServerApp runs.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedshift_app.run import status
from fedshift_app.run.console import duration
from fedshift_app.run.files import METRICS_FILE
from fedshift_app.run.logs import FORMAT
from fedshift_core.accuracies import average, percent
from fedshift_core.env import LIVE
from fedshift_core.limits import MOST_NAME, MOST_SHOWN, plain

AROUND = 12  # lines of the terminal that are no domain's
LOOK_SECONDS = 0.5
CELLS = 20  # of the bar


class Watched:
    """The files of a run in progress; a missing or incomplete one is read again later.

    Attributes:
        status: ``status.json``; empty before the run has begun.
        rounds: The lines of ``metrics.jsonl``, one per full round.
        features: How far kept features are, before round 1.
        left: Estimated seconds left; None if unknown.
    """

    def __init__(self, status_file: Path) -> None:
        """Watch the run whose folder ``status_file`` names."""
        self.status: dict[str, Any] = {}
        self.rounds: list[dict[str, Any]] = []
        self.features: dict[str, Any] = {}
        self.left: float | None = None
        self._status_file = status_file
        self._read = 0
        self._folder: Path | None = None

    def find(self) -> Path | None:
        """Look where the run folder is; the file that names it may be deleted as soon as the run is over."""
        if self._folder is None:
            run = _json(self._status_file)
            named = run.get("run_folder")
            self._folder = Path(named) if isinstance(named, str) else None
            self.features = {} if self._folder else run.get("features") or {}
        return self._folder

    def look(self) -> None:
        """Read the new lines."""
        self.find()
        file = self._status_file if self._folder is None else self._folder / status.FILE
        try:
            self.status = self.status if self._folder is None else _json(file) or self.status
            left = (self.features or self.status).get("seconds_left")
            self.left = None if left is None else max(0.0, left - (time.time() - file.stat().st_mtime))
            if self._folder is not None:
                self._read_rounds(self._folder / METRICS_FILE)
        except (OSError, ValueError, AttributeError):
            return

    def _read_rounds(self, metrics: Path) -> None:
        with metrics.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._read:  # the run has gone back to an earlier round
                self._read, self.rounds = 0, []
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                content = json.loads(line)
                self.rounds.append({name: content.get(name) for name in ("round", "accuracy", "losses")})


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def features_line(watched: Watched) -> str:
    """Return how far the features of images are, which are computed once before round 1; empty in all rounds."""
    if not watched.features:
        return ""
    left = "" if watched.left is None else f"  left {duration(watched.left)}"
    return f"features of images, computed once: {watched.features['done']:,} of {watched.features['of']:,}{left}"


def line_of(watched: Watched) -> str:
    """Return how a run stands in a line: a bar, the round, the average and the worst domain, the time left."""
    run = watched.status
    if watched.features or not run:
        return features_line(watched) or "the run is being prepared"
    done, total = len(watched.rounds), max(int(run.get("rounds") or 0), 1)
    bar = ("#" * (CELLS * min(done, total) // total)).ljust(CELLS, ".")
    parts = [f"{run.get('method')} on {run.get('experiment')}", f"[{bar}] {done}/{total}"]
    for accuracy in [line["accuracy"] for line in watched.rounds if line["accuracy"]][-1:]:
        parts.append(f"avg {percent(average(accuracy))}")
        known = [(value, name) for name, value in accuracy.items() if value is not None]
        parts += [f"worst {plain(name, MOST_NAME)} {percent(value)}" for value, name in sorted(known)[:1]]
    if watched.left:
        parts.append(f"left {duration(watched.left)}")
    return "  ".join([*parts, f"{run.get('state')}: {run.get('answered')} of {run.get('asked')} answered"])


def picture(watched: Watched, console: Console) -> RenderableType:
    """Return the table of a run: its state, and the accuracy of each domain, now and in its best round.

    Args:
        watched: The run.
        console: The terminal, for its height.
    """
    run, rounds = watched.status, watched.rounds
    if watched.features or not run:
        return Text(features_line(watched))
    head = Text(line_of(watched), overflow="fold")
    if not rounds:
        return head
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("domain", "now", "best"):
        table.add_column(name, justify="left" if name == "domain" else "right", no_wrap=True)

    def add(name: str, values: Sequence[float | None], style: str = "") -> None:
        best = max((value for value in values if value is not None), default=None)
        table.add_row(Text(name), percent(values[-1]), percent(best), style=style)

    scored = [line["accuracy"] for line in rounds if line["accuracy"]]
    domains = list(scored[-1]) if scored else []
    shown = domains[: max(1, min(MOST_SHOWN, console.height - AROUND))]
    for domain in shown:
        add(plain(domain, MOST_NAME), [accuracy.get(domain) for accuracy in scored])
    if len(domains) > len(shown):
        table.add_row(f"and {len(domains) - len(shown)} more")
    if domains:
        add("AVG", [average(accuracy) for accuracy in scored], "bold")
    if (loss := (rounds[-1]["losses"] or {}).get("loss")) is not None:
        table.add_row("loss", f"{loss:.3f}", style="dim")
    return Group(head, table)


class Screen:
    """Shows the watched run; this one passes all lines on, and draws a table where there is a console.

    Args:
        console: Where the table is drawn.
        out: As the attribute.

    Attributes:
        out: Where the lines of a program go; None for standard output and error.
        note: Is handed the run folder at the end of a run, also where it fails.
    """

    note: Callable[[Path], None] | None = None

    def __init__(self, console: Console | None = None, out: TextIO | None = None) -> None:
        self._console, self.out = console, out
        self._watched: Watched | None = None
        self._looked = 0.0

    def watch(self, status_file: Path) -> None:
        """Show the run whose folder ``status_file`` names."""
        self._watched = Watched(status_file)

    def find(self) -> Path | None:
        """Return the run folder, if there is one yet."""
        return None if self._watched is None else self._watched.find()

    def draw(self) -> RenderableType:
        """Return the current table."""
        if self._watched is None or self._console is None:
            return Text("")
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
            self._watched.look()
        return picture(self._watched, self._console)


@contextmanager
def screen() -> Iterator[Screen]:
    """Yield a screen for one run; in a terminal the table replaces the lines, unless JSON lines are requested."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "") in ("", "dumb") or os.environ.get(FORMAT):
        yield Screen()
        return
    console = Console(soft_wrap=True)  # printed lines are not wrapped: users copy commands and paths from them
    shown = Screen(console)
    live = Live(
        console=console,
        get_renderable=shown.draw,
        refresh_per_second=2,
        transient=True,
        redirect_stderr=sys.stderr.isatty(),
    )
    os.environ[LIVE] = "1"
    try:
        with live:
            yield shown
    finally:
        del os.environ[LIVE]
