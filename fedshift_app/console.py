"""What a person sees of a run: one line per round, a table at the end."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from datasets.errors import FedShiftError
from strategies.base import RoundResult

log = logging.getLogger("fedshift")


class _Stdout(logging.Handler):
    """Writes to whatever ``sys.stdout`` is now: Flower redirects it to stream logs."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), flush=True)


class _NoTraceback(logging.Filter):
    """Shows a :class:`FedShiftError` as its message: a user's mistake needs no traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, FedShiftError):
            record.msg, record.args, record.exc_info = str(error), (), None
        return True


def set_up() -> None:
    """Show FedShift's own log lines plainly on standard output, once per process."""
    if not log.handlers:
        handler = _Stdout()
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
        logging.getLogger("flwr").addFilter(_NoTraceback())


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
    """Return the line of a round: accuracy per domain, average, training loss, seconds, time left."""
    told = [value for value in result.accuracy.values() if value is not None]
    parts = [f"round {result.server_round:>{len(str(rounds))}}/{rounds}"]
    parts += [f"{name} {percent(value)}" for name, value in result.accuracy.items()]
    parts.append(f"avg {percent(sum(told) / len(told) if told else None)}")
    parts.append(f"loss {result.losses.get('loss', float('nan')):.3f}")
    parts.append(f"{result.seconds:.1f} s")
    parts.append(f"left {duration(left)}")
    return "  ".join(parts)


def table(results: dict[str, Any]) -> str:
    """Return the final table: top-1 accuracy in percent per domain."""
    best = results["best_test"]
    head = ("domain", f"last {results['averaged_rounds']} rounds", "final", f"best round ({best['round']})*")
    rows = [
        (name, percent(results["domains"][name]), percent(results["final"][name]), percent(best["domains"][name]))
        for name in results["domains"]
    ]
    told = [value for value in results["final"].values() if value is not None]
    final = sum(told) / len(told) if told else None
    rows.append(("AVG", percent(results["avg"]), percent(final), percent(best["avg"])))
    rows.append(("STD", percent(results["std"]), "", ""))
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    rule = "  ".join("-" * width for width in widths)
    lines = [_row(head, widths), rule, *(_row(row, widths) for row in rows[:-2]), rule]
    lines += [_row(row, widths) for row in rows[-2:]]
    title = (
        f"{results['method']} on {results['dataset']}: top-1 accuracy (%) of the {results['evaluated']}, "
        f"{results['model']}, bn={results['bn']}, {len(results['nodes'])} nodes, seed {results['seed']}"
    )
    return "\n".join(["", title, *lines, "* chosen on test images", ""])


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
