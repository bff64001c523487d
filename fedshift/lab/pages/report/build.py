"""Puts ``report.html`` and ``report.json`` into a run folder."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.lab.pages.report import REPORT_FILE, figures, papers, predictions, summary
from fedshift.lab.pages.report import features as report_features
from fedshift.run import reading
from fedshift.run.html import drawing
from fedshift.run.html.rendering import render
from fedshift.run.html.sections import Section, folded
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


def make(folder: Path, data_dir: Path | None, limit: int | None, node: int | None = None) -> Made:
    """Write the report of a run, finished or not.

    Args:
        folder: The run folder.
        data_dir: The folder of the test images; None for that of the configuration.
        limit: Largest number of test images of a domain to score; None for all.
        node: The node of the figures of one node; None for the first that holds a domain.

    Returns:
        The page, and the figures that it lacks.

    Raises:
        ConfigError: If the folder is not a run folder or cannot be written to, or the run has no such node.
    """
    record = reading.read(folder)
    chosen = report_features.chosen_node(record, node)
    sight = predictions.look(record, data_dir, limit)
    numbers: dict[str, Any] = {"round": record.checkpoint.server_round if record.checkpoint else None}
    with drawing.style():
        seen = figures.sections(record, sight, numbers)
        if chosen is not None and sight.config is not None:
            papers.add(seen, record, sight, sight.config, chosen, node is not None, numbers)
        content = summary.content(record) | {"seen": folded(seen)}
    lacks = _lacks(seen)
    numbers["not_drawn"] = list(lacks)
    content["contents"] = [
        ("accuracy", "Accuracy"), ("training", "Training"), *((part.id, part.name) for part in content["seen"]),
        ("federation", "Federation"), ("configuration", "Configuration"),
    ]  # fmt: skip
    path = record.folder / REPORT_FILE
    try:
        write_atomically(record.folder / NUMBERS_FILE, json.dumps(finite(numbers)) + "\n")
        write_atomically(path, render("report", content))
    except OSError as error:
        raise ConfigError(f"report: cannot write to {record.folder}: {error.strerror}") from None
    return Made(path, lacks)


def _lacks(sections: Sequence[Section]) -> tuple[str, ...]:
    """Return the figures that could not be drawn, a line for each reason."""
    why: dict[str, list[str]] = {}
    for section in sections:
        for name, reason in section.lacks.items():
            why.setdefault(reason, []).append(name)
    return tuple(f"{', '.join(names)}: {reason}" for reason, names in why.items())
