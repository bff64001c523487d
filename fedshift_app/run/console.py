"""Prints a run in the terminal: one line per round, a table at the end."""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TextIO

from fedshift_app.flower.internals import without_colours
from fedshift_app.run.facts import facts
from fedshift_app.run.files import averaged_over, changed_text
from fedshift_app.run.logs import FORMAT, JsonLine
from fedshift_core import log_levels
from fedshift_core.accuracies import average, percent, worst
from fedshift_core.env import LIVE
from fedshift_core.errors import FedShiftError
from fedshift_core.limits import MOST_NAME, few, plain
from fedshift_core.losses import Losses
from fedshift_core.plural import plural
from fedshift_core.rounds import INITIAL_MODEL, last_rounds
from fedshift_strategies.features.base import Column
from fedshift_strategies.features.catalog import classes
from fedshift_strategies.federation.context import RoundResult

log = logging.getLogger("fedshift")
LEAST_WIDTH = 6  # of a column of the final table
MOST_BEFORE_SPARE = 60  # characters of the columns of accuracies that leave room for others


class _Stdout(logging.Handler):
    """Writes to whatever ``sys.stdout`` is now: Flower redirects it to stream logs.

    Lines of a round and of how far features are, are left out where a terminal shows the same
    (``fedshift.launch.progress_table``).

    Attributes:
        aside: Write to ``sys.stderr`` instead.
    """

    aside = False

    def emit(self, record: logging.LogRecord) -> None:
        if os.environ.get(LIVE) and getattr(record, "event", "") in ("round", "features"):
            return
        print(self.format(record), file=sys.stderr if self.aside else sys.stdout, flush=True)


class _NoTraceback(logging.Filter):
    """Shows a :class:`FedShiftError` as its message: a user's mistake needs no traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, FedShiftError):
            record.msg, record.args, record.exc_info = str(error), (), None
        return True


def coloured(stream: TextIO) -> bool:
    """Tell whether colours belong on a stream: a terminal's that shows them, unless ``NO_COLOR`` is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def set_up(*, aside: bool = False) -> None:
    """Show FedShift's own log lines on standard output, as text or as JSON, once per process.

    Flower's lines have no colours afterwards where the output shows none.

    Args:
        aside: Write to standard error, where standard output is a table or a JSON object.
    """
    ours = [handler for handler in log.handlers if isinstance(handler, _Stdout)]
    for handler in ours:
        handler.aside = aside
    if not ours:
        log_format = os.environ.get(FORMAT, "")
        handler = _Stdout()
        handler.aside = aside
        handler.setFormatter(JsonLine() if log_format == "json" else logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
        logging.getLogger("flwr").addFilter(_NoTraceback())
        if not coloured(sys.stderr):
            without_colours()
        if log_format not in ("", "json"):  # a log's format must not end a node
            log.warning("%s is %r, allowed is json; log lines are text", FORMAT, plain(log_format, MOST_NAME))


def set_up_node() -> None:
    """Set up a node's log lines as :func:`set_up` if their format is named; otherwise Python shows its warnings."""
    if os.environ.get(FORMAT):
        set_up()


def quiet_flower() -> AbstractContextManager[None]:
    """Hold back Flower's INFO lines, of which each round has a dozen; warnings and errors pass."""
    return log_levels.at_least(logging.WARNING, "flwr")


def round_line(result: RoundResult, rounds: int, left: float) -> str:
    """Return the line of a round: accuracy per domain, average, worst domain, training loss, seconds, time left.

    It has no accuracy where the global model was not scored, and names the share where a part was.
    """
    parts = [f"round {result.server_round:>{len(str(rounds))}}/{rounds}"]
    parts += [f"{name} {percent(value)}" for name, value in result.accuracy.items()]
    if result.accuracy:
        parts.append(f"avg {percent(average(result.accuracy))}")
    if least := worst(result.accuracy):
        parts.append(f"worst {least} {percent(result.accuracy[least])}")
    if result.evaluated_share < 1:
        parts.append(f"(on {100 * result.evaluated_share:.3g} % of the test images)")
    if "loss" in result.losses:
        parts.append(f"loss {result.losses['loss']:.3f}")
    if result.lost:
        parts.append(f"without {plural(len(result.lost), 'node')}")
    parts.append(f"{result.seconds:.1f} s")
    parts.append(f"left {duration(left)}")
    return "  ".join(parts)


def table(results: dict[str, Any], entries: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the final table: top-1 accuracy in percent per domain, and what features show of the run.

    Args:
        results: Content of ``results.json``.
        entries: The section ``features`` of the configuration.
    """
    trained, losses = results.get("rounds") != 0, Losses.of(results)
    overall, over = losses.overall(results["domains"]), averaged_over(results)
    first = last_rounds(results["averaged_rounds"], "scored " if over else "") if trained else INITIAL_MODEL
    columns: dict[str, Column] = {
        first: (
            {name: _marked(value, losses.mark(name)) for name, value in results["domains"].items()},
            overall.avg,
            "" if overall.std is None else percent(overall.std),
        ),
    }
    if trained:
        columns["final"] = (results["final"], average(results["final"]), "")
    for name, domains in few(results.get("others", {})).items():  # mean over the same rounds as the first column
        columns[name] = (domains, losses.overall(domains).avg, "")
    if over_nodes := results.get("spread_over_nodes"):
        columns["std over nodes"] = (over_nodes, average(over_nodes), "")
    views = [feature.view(results) for feature in classes(entries)]
    for view in views:
        columns |= view.columns
    for view in views:
        if sum(max(len(name), LEAST_WIDTH) + 2 for name in columns) <= MOST_BEFORE_SPARE:
            columns |= view.spare
    notes = [f"{first}: {', '.join(map(str, over))}"] if over else []
    notes += [note for view in views for note in view.notes]
    notes += facts(results)
    if changed := results.get("changed"):
        notes.append(changed_text(changed))
    rows = [(name, *(_cell(domains[name]) for domains, _, _ in columns.values())) for name in results["domains"]]
    rows.append(("AVG", *(_cell(avg) for _, avg, _ in columns.values())))
    rows.append(("STD", *(std for _, _, std in columns.values())))
    about = " (approximation)" if results.get("approximation") else ""
    what = f"{results['method']}{about}" if trained else INITIAL_MODEL
    title = (
        f"{what} on {results['dataset']}: top-1 accuracy (%) of the {results['evaluated']}, "
        f"{results['model']}, bn={results['bn']}, {plural(len(results['nodes']), 'node')}, seed {results['seed']}"
    )
    lines = ["", title, *_columns(("domain", *columns), rows, below=2), *notes, ""]
    for below in (table for view in views for table in view.tables):
        lines += [*_columns(below.head, below.rows, below.below), *below.notes, ""]
    return "\n".join(lines)


def _marked(value: float | None, mark: str) -> float | str | None:
    """Return a value with what its cell carries, as text; without a mark the value."""
    return f"{percent(value)} ({mark})" if mark else value


def _cell(value: float | str | None) -> str:
    """Return an accuracy or a number as text, and text as it is."""
    return str(value) if isinstance(value, int | str) else percent(value)


def _columns(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], below: int) -> list[str]:
    """Return aligned lines, the last ``below`` of them under a second rule."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    rule = "  ".join("-" * width for width in widths)
    lines = [_row(row, widths) for row in rows]
    return [_row(head, widths), rule, *lines[:-below], rule, *lines[-below:]]


def _row(cells: tuple[str, ...], widths: list[int]) -> str:
    first, *others = (cell for cell in cells)
    return "  ".join(
        [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
    ).rstrip()


def duration(seconds: float) -> str:
    """Return seconds as m:ss or h:mm:ss; from a day on with the days, ``2 d 3:04:05``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    since_midnight = f"{hours}:{minutes:02d}:{rest:02d}" if hours or days else f"{minutes}:{rest:02d}"
    return f"{days} d {since_midnight}" if days else since_midnight
