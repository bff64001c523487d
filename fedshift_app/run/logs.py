"""Writes log lines as JSON objects into a run's ``log.jsonl`` and, on request, to standard output."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedshift_app.node.chained_log import stamp
from fedshift_core.limits import plain

LOG_FILE = "log.jsonl"
FORMAT = "FEDSHIFT_LOG"  # environment variable: `json` for JSON lines on standard output
FIELDS = ("event", "round", "node", "domain")  # passed with `extra=`
MOST_MESSAGE = 2000  # characters; escapes may double the length of the line

log = logging.getLogger("fedshift")


def cleaned(text: str, most: int = MOST_MESSAGE) -> str:
    """Return a text of at most ``most`` characters without control characters but line ends."""
    cut = text if len(text) <= most else text[: most - 3] + "..."
    return "\n".join(plain(line, most) if line else "" for line in cut.split("\n"))


class JsonLine(logging.Formatter):
    """Formats a record as JSON: ``time`` (UTC, ms), ``level``, ``logger``, ``message``, the call's fields, ``error``.

    It has no traceback, which may be of any length and hold what a node sent.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": stamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": cleaned(record.getMessage()),
        }
        line |= {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = plain(f"{type(error).__name__}: {error}")
        return json.dumps(line, ensure_ascii=False)


class LogFile(logging.Handler):
    """Appends to a file until that fails; the failure is logged once and ends no run."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._failed = path, False
        self.setFormatter(JsonLine())

    def tell(self, level: int, message: str, **fields: Any) -> None:
        """Write a line to the file alone, not to the terminal."""
        self.handle(log.makeRecord(log.name, level, "", 0, "%s", (message,), None, extra=fields))

    def emit(self, record: logging.LogRecord) -> None:
        """Append a line."""
        if self._failed or (not record.name.startswith("fedshift") and record.levelno < logging.WARNING):
            return
        try:
            # Opened each time, to notice a moved folder or a full disk at once; no fsync, as it is a log.
            with self._path.open("a", encoding="utf-8") as file:
                file.write(self.format(record) + "\n")
        except OSError as error:
            self._failed = True
            log.warning("cannot write %s any more: %s", self._path, error.strerror)


@contextmanager
def written_to(folder: Path) -> Iterator[LogFile]:
    """Append the lines of ``fedshift`` and the warnings and errors of ``flwr`` to ``log.jsonl`` of a folder."""
    handler = LogFile(folder / LOG_FILE)
    loggers = [log, logging.getLogger("flwr")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield handler
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
