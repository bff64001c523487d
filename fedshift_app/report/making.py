"""Puts ``report.html`` and ``report.json`` into a run folder."""

import json
from pathlib import Path
from typing import Any

from fedshift_app.report import closer, drawing, facts, figures, page, papers, reading, views
from fedshift_app.run.durable import write_atomically
from fedshift_app.run.folder import finite
from fedshift_wire.errors import ConfigError

REPORT_FILE, NUMBERS_FILE = "report.html", "report.json"


def make(folder: Path, data_dir: Path | None, limit: int | None, node: int | None = None) -> Path:
    """Write the report of a run, finished or not.

    Args:
        folder: The run folder.
        data_dir: Where the test images are; None for where the configuration says.
        limit: At most so many test images of a domain are scored; None for all.
        node: Whose model is looked at more closely; None for the first that holds a domain.

    Returns:
        The page.

    Raises:
        ConfigError: If the folder is not that of a run or cannot be written to, or the run has no such node.
    """
    record = reading.read(folder)
    chosen = closer.chosen_node(record, node)
    sight = views.look(record, data_dir, limit)
    numbers: dict[str, Any] = {"round": record.checkpoint.server_round if record.checkpoint else None}
    with drawing.style():
        seen = figures.sections(record, sight, numbers)
        if chosen is not None:
            config = views.with_data(record.config, data_dir)
            papers.add(seen, record, sight, config, chosen, node is not None, numbers)
        content = facts.content(record) | {"seen": seen}
    content["contents"] = [
        ("accuracy", "Accuracy"), ("training", "Training"), *((part.id, part.name) for part in content["seen"]),
        ("federation", "Federation"), ("configuration", "Configuration"),
    ]  # fmt: skip
    path = record.folder / REPORT_FILE
    try:
        write_atomically(record.folder / NUMBERS_FILE, json.dumps(finite(numbers)) + "\n")
        write_atomically(path, page.render(content))
    except OSError as error:
        raise ConfigError(f"report: cannot write to {record.folder}: {error.strerror}") from None
    return path
