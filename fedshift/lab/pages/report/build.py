"""Puts ``report.html`` and ``report.json`` into a run folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.lab.pages.report import REPORT_FILE, figures, predictions, record_sections
from fedshift.run import reading
from fedshift.run.html import drawing, sections
from fedshift.run.texts import render
from fedshift_app.run.summary import finite
from fedshift_core.atomic_io import write_atomically
from fedshift_core.errors import ConfigError

NUMBERS_FILE = "report.json"


@dataclass(frozen=True)
class Made:
    """A report.

    Attributes:
        page: Its file.
        lacks: Figures that could not be drawn, a line for each reason.
    """

    page: Path
    lacks: tuple[str, ...]


def make(folder: Path, data_dir: Path | None, limit: int | None) -> Made:
    """Write the report of a run, finished or not.

    Args:
        folder: The run folder.
        data_dir: The folder of the test images; None for that of the configuration.
        limit: Largest number of test images of a domain to score; None for all.

    Returns:
        The page, and the figures that it lacks.

    Raises:
        ConfigError: If the folder is not a run folder or cannot be written to.
    """
    record = reading.read(folder)
    sight = predictions.look(record, data_dir, limit)
    numbers: dict[str, Any] = {"round": record.checkpoint.server_round if record.checkpoint else None}
    with drawing.style():
        accuracy, training, *rest = record_sections.sections(record)
        seen = figures.sections(record, sight, numbers)
        why: dict[str, list[str]] = {}
        for part in seen:
            for name, reason in part.lacks.items():
                why.setdefault(reason, []).append(name)
        numbers["not_drawn"] = sections.by_reason(why)
        content = record_sections.head(record) | {"sections": [accuracy, training, *sections.folded(seen), *rest]}
        page = render("report", content)
    path = record.folder / REPORT_FILE
    try:
        write_atomically(record.folder / NUMBERS_FILE, json.dumps(finite(numbers)) + "\n")
        write_atomically(path, page)
    except OSError as error:
        raise ConfigError(f"report: cannot write to {record.folder}: {error.strerror}") from None
    return Made(path, tuple(numbers["not_drawn"]))
