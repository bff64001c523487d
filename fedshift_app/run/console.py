"""What a person sees of a run: one line per round, a table at the end."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from fedshift_app.flower.internals import without_colours
from fedshift_app.run import one_class
from fedshift_app.run.figures import images_told
from fedshift_app.run.logs import FORMAT, JsonLine
from fedshift_app.run.model_selection import stop_told
from fedshift_app.run.scores import mean, worst
from fedshift_core.env import LIVE
from fedshift_core.errors import FedShiftError
from fedshift_core.limits import MOST_NAME, few, plain
from fedshift_core.options.scoring import last_rounds
from fedshift_core.wire.names import AVERAGED, BN_SCORE
from strategies.federation.context import RoundResult

log = logging.getLogger("fedshift")
LEAST_WIDTH = 6  # of a column of the final table
#: Of the final table, by heading: what stands in the rows of domains, of AVG, of STD.
Columns = dict[str, tuple[Mapping[str, float | None], float | str | None, str]]
MOST_BEFORE_FIGURES = 60  # characters of the columns of accuracies beside which there is room for those of figures


class _Stdout(logging.Handler):
    """Writes to whatever ``sys.stdout`` is now: Flower redirects it to stream logs.

    The line of a round is left out where a table shows it (``fedshift.launch.progress_table``).

    Attributes:
        aside: Write to ``sys.stderr`` instead.
    """

    aside = False

    def emit(self, record: logging.LogRecord) -> None:
        if os.environ.get(LIVE) and getattr(record, "event", "") == "round":
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
    """Show FedShift's own log lines on standard output, once per process: plainly, or as JSON if that is asked for.

    Flower's lines have colours from then on only where they belong.

    Args:
        aside: On standard error, where standard output is a table or an object that somebody keeps.
    """
    ours = [handler for handler in log.handlers if isinstance(handler, _Stdout)]
    for handler in ours:
        handler.aside = aside
    if not ours:
        asked = os.environ.get(FORMAT, "")
        handler = _Stdout()
        handler.aside = aside
        handler.setFormatter(JsonLine() if asked == "json" else logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
        logging.getLogger("flwr").addFilter(_NoTraceback())
        if not coloured(sys.stderr):
            without_colours()
        if asked not in ("", "json"):  # a log's format must not end a node
            log.warning("%s is %r, allowed is json; lines are plain", FORMAT, plain(asked, MOST_NAME))


def set_up_node() -> None:
    """Show a node's log lines as :func:`set_up` if their format is named; else Python shows its warnings."""
    if os.environ.get(FORMAT):
        set_up()


@contextmanager
def quiet_flower() -> Iterator[None]:
    """Hold back Flower's INFO lines, of which each round has a dozen; warnings and errors pass."""
    flower = logging.getLogger("flwr")
    level = flower.level
    flower.setLevel(logging.WARNING)
    try:
        yield
    finally:
        flower.setLevel(level)


def round_line(result: RoundResult, rounds: int, left: float) -> str:
    """Return the line of a round: accuracy per domain, average, worst domain, training loss, seconds, time left.

    A round in which the global model was not scored says nothing of accuracy; one scored on a part says on which.
    """
    parts = [f"round {result.server_round:>{len(str(rounds))}}/{rounds}"]
    parts += [f"{name} {percent(value)}" for name, value in result.accuracy.items()]
    if result.accuracy:
        parts.append(f"avg {percent(mean(result.accuracy.values()))}")
    if least := worst(result.accuracy):
        parts.append(f"worst {least} {percent(result.accuracy[least])}")
    if result.evaluated_share < 1:
        parts.append(f"(on {100 * result.evaluated_share:.3g} % of the test images)")
    if "loss" in result.losses:
        parts.append(f"loss {result.losses['loss']:.3f}")
    parts.append(f"{result.seconds:.1f} s")
    parts.append(f"left {duration(left)}")
    return "  ".join(parts)


def scored_with(results: Mapping[str, Any]) -> str:
    """Return with which statistics of BatchNorm a run's accuracies were scored."""
    return str(results.get("scored_with", AVERAGED))


def table(results: dict[str, Any]) -> str:
    """Return the final table: top-1 accuracy in percent per domain, then scores of client models if there are any."""
    columns: Columns = {
        last_rounds(results["averaged_rounds"]): (results["domains"], results["avg"], percent(results["std"])),
        "final": (results["final"], mean(results["final"].values()), ""),
    }
    for name, domains in few(results.get("others", {})).items():  # over the same rounds as the first column
        columns[name] = (domains, mean(domains.values()), "")
    notes = []
    if spread := results.get("spread_over_nodes"):
        columns["std over nodes"] = (spread, mean(spread.values()), "")
    for mark, key, on in (("*", "best_test", "test images"), ("+", "best_validation", "validation images")):
        if best := results.get(key):
            columns[f"best round ({best['round']}){mark}"] = (best["domains"], best["avg"], "")
            partly = results.get("partly_scored_rounds", 0)
            among = f", among the rounds scored on all test images ({partly} were not)" if partly else ""
            notes.append(f"{mark} chosen on {on}{among}")
    if chosen := results.get("chosen_round"):
        notes[-1] += f"; its model is kept: {chosen['files'][0]}"
    if stopped := results.get("stopped_early"):
        notes.append(stop_told(stopped))
    if constant := results.get(one_class.KEY):
        notes += [one_class.told(constant), constant["advice"]]
    told = results.get("figures")
    if told and sum(max(len(name), LEAST_WIDTH) + 2 for name in columns) <= MOST_BEFORE_FIGURES:
        columns |= _figure_columns(told)
    notes[:0] = _figure_notes(results, told)
    rows = [(name, *(_cell(domains[name]) for domains, _, _ in columns.values())) for name in results["domains"]]
    rows.append(("AVG", *(_cell(avg) for _, avg, _ in columns.values())))
    rows.append(("STD", *(std for _, _, std in columns.values())))
    if any(name.startswith(BN_SCORE) for name in results.get("others", {})) or scored_with(results) != AVERAGED:
        notes.insert(
            0, f"BatchNorm's statistics: {scored_with(results)}; columns bn=... are the same rounds with others"
        )
    about = " (approximation)" if results.get("approximation") else ""
    title = (
        f"{results['method']}{about} on {results['dataset']}: top-1 accuracy (%) of the {results['evaluated']}, "
        f"{results['model']}, bn={results['bn']}, {len(results['nodes'])} nodes, seed {results['seed']}"
    )
    lines = ["", title, *_columns(("domain", *columns), rows, below=2), *notes, ""]
    return "\n".join(lines + client_table(results["client_models"]) if "client_models" in results else lines)


def _figure_columns(told: Mapping[str, Any]) -> Columns:
    """Return the columns of the figures, each with its mean over the domains, and of the number of test images."""
    columns: Columns = {}
    for name, key in (("balanced^", "balanced_accuracy"), ("macro-F1^", "macro_f1")):
        by_domain = {domain: None if one is None else one[key] for domain, one in told["domains"].items()}
        columns[name] = (by_domain, mean(by_domain.values()), "")
    images = {domain: None if one is None else one.get("images") or one["n"] for domain, one in told["domains"].items()}
    columns["images"] = (images, "", "")
    return columns


def _figure_notes(results: Mapping[str, Any], told: Mapping[str, Any] | None) -> list[str]:
    """Return the lines of the worst domain and of all test images together."""
    found = []
    if least := worst(results["domains"]):
        one = told["domains"].get(least) if told else None
        images = f", of {_images(one)}" if one else ""
        found.append(f"worst domain: {least} {percent(results['domains'][least])}{images}")
    if told and (all_of := told["overall"]):
        names = {"accuracy": "accuracy", "balanced_accuracy": "balanced", "macro_f1": "macro-F1", "auc": "AUC",
                 "ece": "ECE"}  # fmt: skip
        each = ", ".join(f"{name} {percent(all_of[key])}" for key, name in names.items() if all_of[key] is not None)
        found.append(f"^ of round {told['round']}; all {_images(all_of)} together: {each}")
    return found


def _images(one: Mapping[str, Any]) -> str:
    return images_told(one["n"], one.get("images"), " test images")


def _cell(value: float | str | None) -> str:
    """Return an accuracy, a number of images, or what is a word already."""
    return str(value) if isinstance(value, int | str) else percent(value)


def client_table(scores: dict[str, Any]) -> list[str]:
    """Return the lines that show how the nodes' own models did right after local training."""
    rows = [(f"all on {domain}", percent(value)) for domain, value in scores["by_domain"].items()]
    rows += [(f"ATA {domain}", percent(value)) for domain, value in scores["ata"].items()]
    rows += [(name.upper(), percent(scores[name])) for name in ("lta", "gata", "gasa", "cprr")]
    head = ("client models (%)", last_rounds(scores["averaged_rounds"]))
    why = [f"missing: {scores['why_missing']}"] if "why_missing" in scores else []
    return [*_columns(head, rows, below=4), *why, ""]


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


def percent(value: float | None) -> str:
    """Return an accuracy with one digit, or a word where there is none."""
    return "missing" if value is None else f"{value:.1f}"


def duration(seconds: float) -> str:
    """Return seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
