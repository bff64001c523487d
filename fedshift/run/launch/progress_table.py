"""A live table of a run, for terminals; elsewhere the console prints lines.

It reads the files of the run folder, so it is the same for every engine, wherever the ServerApp runs.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedshift.run.launch import log_filter
from fedshift_app.run import status
from fedshift_app.run.console import coloured, duration
from fedshift_app.run.files import METRICS_FILE
from fedshift_app.run.logs import FORMAT
from fedshift_core.accuracies import average, mean, percent
from fedshift_core.env import LIVE
from fedshift_core.limits import MOST_NAME, MOST_SHOWN, plain

BLOCKS, LETTERS = "▁▂▃▄▅▆▇█", "_.-=+*#%"  # of a sparkline, and where the terminal has no such letters
WIDEST, NARROWEST = 40, 8  # cells of a sparkline
OTHER_COLUMNS = 42  # columns of the terminal that the rest of the table takes
AROUND = 12  # lines of the terminal that are no domain's
LOOK_SECONDS = 0.5


def spark(values: Sequence[float | None], cells: int, blocks: str = BLOCKS) -> str:
    """Return numbers as a sparkline of blocks, with a gap where a number is unknown.

    If there are more numbers than cells, each cell shows the mean of its share.
    """
    parts = min(cells, len(values))
    ends = [i * len(values) // parts for i in range(parts + 1)] if parts else []
    means = [mean(values[begin:end]) for begin, end in pairwise(ends)]
    known = [value for value in means if value is not None]
    if not known:
        return ""
    least, most = min(known), max(known)
    top = len(blocks) - 1
    scale = top / (most - least) if most > least else 0.0
    return "".join(
        " " if value is None else blocks[round((value - least) * scale) if scale else top // 2] for value in means
    )


class Watched:
    """The files of a run in progress; a missing or incomplete one is read again later."""

    def __init__(self, status_file: Path) -> None:
        """Watch the run whose folder ``status_file`` names."""
        self.status: dict[str, Any] = {}
        self.rounds: list[dict[str, Any]] = []
        self.features: dict[str, Any] = {}  # how far kept features are, before round 1
        self._status_file = status_file
        self._read = 0
        self._folder: Path | None = None

    def find(self) -> None:
        """Look where the run folder is; the file that names it may be deleted as soon as the run is over."""
        if self._folder is None:
            run = _json(self._status_file)
            named = run.get("run_folder")
            self._folder = Path(named) if isinstance(named, str) else None
            self.features = {} if self._folder else run.get("features") or {}

    def look(self) -> None:
        """Read the new lines."""
        self.find()
        if self._folder is None:
            return
        self.status = _json(self._folder / status.FILE) or self.status
        try:
            with (self._folder / METRICS_FILE).open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._read:  # the run has gone back to an earlier round
                    self._read, self.rounds = 0, []
                file.seek(self._read)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._read += len(line)
                    metrics = json.loads(line)
                    self.rounds.append({key: metrics.get(key) for key in ("round", "accuracy", "losses", "seconds")})
        except (OSError, ValueError, AttributeError):
            return


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def bar(features: Mapping[str, Any], left: float | None) -> RenderableType:
    """Return a line that shows how far the features of images are, which are computed once before round 1.

    Args:
        features: ``done`` of ``of`` images and views.
        left: Estimated seconds left; None if unknown.
    """
    done, number = features["done"], features["of"]
    line = Table.grid(padding=(0, 1))
    line.add_row(
        "features", ProgressBar(total=number, completed=done, width=WIDEST), f"{done:,}/{number:,}",
        "" if left is None else f"left {duration(left)}",
    )  # fmt: skip
    return line


def picture(
    run_status: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]], console: Console, left: float | None
) -> RenderableType:
    """Return the table of a run: its state, and the accuracy of each domain over the rounds.

    Args:
        run_status: ``status.json``; empty before the run has begun.
        rounds: The lines of ``metrics.jsonl``, one per full round.
        console: The terminal, for its size and its encoding.
        left: Estimated seconds left; None if unknown.
    """
    if not run_status:
        return Text("")
    blocks = BLOCKS if console.encoding.lower().startswith("utf") else LETTERS
    cells = max(NARROWEST, min(WIDEST, console.width - OTHER_COLUMNS))
    head = Text.assemble(
        (f"{run_status.get('method')} on {run_status.get('experiment')}", "bold"),
        f"  round {run_status.get('round')} of {run_status.get('rounds')}, {run_status.get('state')}: "
        f"{run_status.get('answered')} of {run_status.get('asked')} answered",
        "" if left is None else f"  left {duration(left)}",
        no_wrap=False, overflow="fold",
    )  # fmt: skip
    scored = [line for line in rounds if line["accuracy"]]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, side in (("domain", "left"), ("now", "right"), ("best", "right"), ("rounds", "left")):
        table.add_column(name, justify="left" if side == "left" else "right", no_wrap=True)
    domains = list(scored[-1]["accuracy"]) if scored else []
    shown = domains[: max(1, min(MOST_SHOWN, console.height - AROUND))]
    for domain in shown:
        values = [line["accuracy"].get(domain) for line in scored]
        _add(table, plain(domain, MOST_NAME), values, cells, blocks)
    if len(domains) > len(shown):
        table.add_row(f"and {len(domains) - len(shown)} more", "", "", "")
    if domains:
        _add(table, "AVG", [average(line["accuracy"]) for line in scored], cells, blocks, style="bold")
    losses = [(line["losses"] or {}).get("loss") for line in rounds]
    if losses and losses[-1] is not None:
        table.add_row("loss", f"{losses[-1]:.3f}", "", spark(losses, cells, blocks), style="dim")
    return Group(head, table) if rounds else head


def _add(table: Table, name: str, values: Sequence[float | None], cells: int, blocks: str, style: str = "") -> None:
    best = max((value for value in values if value is not None), default=None)
    now, most = percent(values[-1]), percent(best)
    table.add_row(Text(name), now, most, Text(spark(values, cells, blocks), style="cyan"), style=style)


class Screen:
    """Draws the table of the watched run; without a console it passes all lines through unchanged."""

    def __init__(self, console: Console | None = None) -> None:
        """Draw on this console; None for not at all."""
        self._console = console
        self._watched: Watched | None = None
        self._looked = self._since = 0.0
        self._left: float | None = None

    def watch(self, status_file: Path) -> None:
        """Show the run whose folder ``status_file`` names."""
        self._watched = Watched(status_file)

    def find(self) -> None:
        """Look where the run folder is, before the file that names it goes: a short run is over before any look."""
        if self._watched is not None:
            self._watched.find()

    def draw(self) -> RenderableType:
        """Return the current table."""
        if self._watched is None or self._console is None:
            return Text("")
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._watched.look()
            seconds_left = (self._watched.features or self._watched.status).get("seconds_left")
            if seconds_left != self._left:
                self._left, self._since = seconds_left, now
        left = None if self._left is None else max(0.0, self._left - (now - self._since))
        if self._watched.features:
            return bar(self._watched.features, left)
        return picture(self._watched.status, self._watched.rounds, self._console, left)

    def call(self, command: Sequence[str], folder: Path, env: Mapping[str, str], *, early: bool = False) -> int:
        """Run a program to its end, with its lines above the table; arguments and result as ``log_filter.call``."""
        if self._console is None:
            return log_filter.call(command, folder, env, sys.stdout, sys.stderr, early=early)
        process = subprocess.Popen(
            command, cwd=folder, env={**env, "PYTHONUNBUFFERED": "1"}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8", errors="replace",
        )  # fmt: skip
        try:
            assert process.stdout is not None
            colour = coloured(sys.stdout)
            for line in process.stdout:
                if early and log_filter.is_end(log_filter.ANSI.sub("", line)):
                    process.kill()
                    process.wait()
                    return 0
                if (shown := log_filter.cleaned(line, colour=colour)) is not None:
                    print(shown.rstrip("\n"), flush=True)  # rich, in the place of standard output, moves it up
            return process.wait()
        except BaseException:  # as subprocess.run does
            process.kill()
            process.wait()
            raise


def possible() -> bool:
    """Tell whether standard output is a terminal that can be drawn on, and no JSON lines are requested."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb") and not os.environ.get(FORMAT)


@contextmanager
def screen() -> Iterator[Screen]:
    """Yield a screen for one run; in a terminal the table replaces the lines of the rounds."""
    if not possible():
        yield Screen()
        return
    console = Console(soft_wrap=True)  # printed lines are not wrapped: users copy commands and paths from them
    shown = Screen(console)
    live = Live(
        console=console, get_renderable=shown.draw, refresh_per_second=2, transient=True,
        redirect_stderr=sys.stderr.isatty(),
    )  # fmt: skip
    os.environ[LIVE] = "1"
    try:
        with live:
            yield shown
    finally:
        del os.environ[LIVE]
