"""Prints a run in the terminal: what is about to run, one line per round, a table at the end."""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TextIO

from fedshift_app.config import registry
from fedshift_app.config.sections import RunConfig
from fedshift_app.flower.internals import without_colours
from fedshift_app.run import shown
from fedshift_app.run.files import changed_text
from fedshift_app.run.logs import FORMAT, JsonLine
from fedshift_core import log_levels
from fedshift_core.accuracies import average, percent, worst
from fedshift_core.env import LIVE
from fedshift_core.errors import FedShiftError
from fedshift_core.features import task_of
from fedshift_core.limits import MOST_NAME, plain
from fedshift_core.plural import plural
from fedshift_core.rounds import INITIAL_MODEL
from fedshift_core.run_settings import RunSettings
from fedshift_core.shown import History
from fedshift_core.text_columns import columns
from fedshift_strategies.features.catalog import Features
from fedshift_strategies.federation.context import RoundResult
from fedshift_strategies.federation.roster import Node

NAMED_NODES = 20  # of a domain; of more only the number is said

log = logging.getLogger("fedshift")


class _Stdout(logging.Handler):
    """Writes to whatever ``sys.stdout`` is now: Flower redirects it to stream logs.

    Lines of a round and of how far features are, are left out where a terminal shows the same
    (``fedshift.run.launch.progress_table``).

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
        parts.append(share_text(result.evaluated_share))
    if "loss" in result.losses:
        parts.append(f"loss {result.losses['loss']:.3f}")
    if result.lost:
        parts.append(f"without {plural(len(result.lost), 'node')}")
    parts.append(f"{result.seconds:.1f} s")
    parts.append(f"left {duration(left)}")
    return "  ".join(parts)


def share_text(share: float) -> str:
    """Return on which share of the test images an accuracy is; empty for all."""
    return "" if share == 1 else f"(on {100 * share:.3g} % of the test images)"


def table(results: Mapping[str, Any], config: RunSettings) -> str:
    """Return the final table with its notes, facts and further tables.

    Args:
        results: Content of ``results.json``.
        config: The run's configuration.
    """
    final = shown.final(History(config, results=results))
    about = " (approximation)" if results.get("approximation") else ""
    what = INITIAL_MODEL if results.get("rounds") == 0 else f"{results['method']}{about}"
    title = (
        f"{what} on {results['dataset']}: {task_of(config.task).score} (%) of the {results['evaluated']}, "
        f"{results['model']}, bn={results['bn']}, {plural(len(results['nodes']), 'node')}, seed {results['seed']}"
    )
    changed = [changed_text(results["changed"])] if results.get("changed") else []
    rows = []
    for name, *cells in final.rows:
        first, *others = (str(cell) if isinstance(cell, int | str) else percent(cell) for cell in cells)
        mark = final.marks.get(str(name))
        rows.append((str(name), f"{first} ({mark})" if mark else first, *others))
    lines = ["", title, *_columns(("domain", *final.heads), rows, below=2)]
    lines += [*final.notes, *final.facts, *changed, ""]
    for below in final.tables:
        lines += [*_columns(below.head, below.rows, below.below), *below.notes, ""]
    return "\n".join(lines)


def _columns(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], below: int) -> list[str]:
    """Return aligned lines, the last ``below`` of them under a second rule."""
    lines = columns([head, *rows], "", numbers=True, ruled=True)
    return [*lines[:-below], lines[1], *lines[-below:]]


def duration(seconds: float) -> str:
    """Return seconds as m:ss or h:mm:ss; from a day on with the days, ``2 d 3:04:05``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    since_midnight = f"{hours}:{minutes:02d}:{rest:02d}" if hours or days else f"{minutes}:{rest:02d}"
    return f"{days} d {since_midnight}" if days else since_midnight


def describe(config: RunConfig, engine: str, nodes: list[Node], features: Features) -> str:
    """Return a few lines that say what is about to run, which node holds which domain, and what features do."""
    held = {domain: [node for node in nodes if domain in node.domains] for domain in config.dataset.domains}
    epochs = plural(config.train.epochs, "local epoch")
    rounds = f"{plural(config.rounds, 'round')} of {epochs}" if config.rounds else "no training (rounds=0)"
    what = registry.label(config.method["name"]) if config.rounds else INITIAL_MODEL
    lines = [
        f"{config.experiment}: {what} on {config.dataset.name}, {config.model.name}, "
        f"bn={config.model.bn}, {plural(len(nodes), 'node')}, {rounds}, seed {config.seed}, engine {engine}",
        *(f"  {domain}: {_held_by(who)}" for domain, who in held.items()),
    ]
    if approximation := registry.approximation_line(config.method["name"]):
        lines.append(f"  {approximation}")
    if config.evaluate.fraction < 1:
        lines.append(
            f"  before the last {plural(config.evaluate.last, 'round')} scores are those on "
            f"{100 * config.evaluate.fraction:g} % of the test images, in whole batches"
        )
    return "\n".join([*lines, *(f"  {line}" for line in features.describe(nodes))])


def _held_by(nodes: list[Node]) -> str:
    """Return who holds a domain, each node by name while a line has room for that."""
    if not nodes:
        return "held by no node"
    sizes = [node.num_examples for node in nodes]
    if len(nodes) > NAMED_NODES:
        return f"{plural(len(nodes), 'node')}, {min(sizes)} to {plural(max(sizes), 'image')} each, {sum(sizes)} in all"
    texts = []
    for node in nodes:
        several = f" of {plural(len(node.domains), 'domain')}" if node.held_tests else ""
        texts.append(f"{node.index} ({plural(node.num_examples, 'image')}{several})")
    return "node " + ", ".join(texts)
