"""The page of a board: its tables as JSON, and a script that chooses, sorts and saves them.

The script computes no number: means, spreads, differences and the text of each cell are those of ``compare``.
"""

import base64
import hashlib
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedshift.lab.tables.compare import formats, run_facts
from fedshift.lab.tables.compare.board import UNSEEN, Board, Table
from fedshift.lab.tables.compare.page import headline_first, relative
from fedshift.lab.tables.compare.row_commands import commands, from_here, scored_again
from fedshift.lab.tables.compare.rows import Row, baseline
from fedshift.lab.tables.results.loading import Run
from fedshift.lab.tables.results.places import finished, held
from fedshift.lab.tables.results.settings import BASELINE
from fedshift.run.texts import TEMPLATES, render
from fedshift_app.config import files, registry
from fedshift_app.features.bn_statistics import BN_STATISTICS_TEXT
from fedshift_app.run.logs import cleaned
from fedshift_core import json_text
from fedshift_core.accuracies import mean

TITLE = "Leaderboard"
#: Returns the address of a method's page; empty if it has none.
PageOf = Callable[[str], str]
#: Folder of the pages of methods, of a checkout.
_PAGES = Path("docs") / "methods"
_SCRIPT = "board.js"
#: Heading of the column of costs; seeds of a row that says how much seeds differ.
COST, REPEATED = "MB a round", 3
#: Characters that end a script; JSON may have them as escapes, as it has those that end a line (``json_text``).
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def page(board: Board, where: Path | None = None, page_of: PageOf | None = None) -> str:
    """Return the page as HTML, which needs nothing else.

    Args:
        board: The tables.
        where: The file to which the page will be written, for relative links to runs; None for no links.
        page_of: Where the page of a method is; None for the files of a checkout.
    """
    script = (TEMPLATES / _SCRIPT).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = content(board, where, page_of or (lambda method: relative(files.APP / _PAGES / f"{method}.md", where)))
    shown = {"title": TITLE, "data": embedded(data), "script": script, "digest": digest, "runs": board.runs}
    return render("board", shown | {"tables": len(board.tables), "left_out": board.left_out})


def embedded(data: Any) -> str:
    """Return data as JSON that may stand in a script element: nothing in it ends the element."""
    text = json_text.text_of(data, separators=(",", ":"), allow_nan=False)
    for character, escape in _ESCAPED.items():
        text = text.replace(character, escape)
    return text


def content(board: Board, where: Path | None, page_of: PageOf) -> dict[str, Any]:
    """Return what the page holds: tables with their rows, methods with their pages."""
    methods = dict.fromkeys(row.method for table in board.tables for row in table.numbers.rows)
    first = max(board.tables, key=lambda table: _headline(table, board.tables))
    return {
        "statistics": BN_STATISTICS_TEXT,
        "baseline": BASELINE,
        "first": [first.dataset, first.network, first.statistics],
        "methods": {name: _method(name, page_of) for name in methods},
        "tables": [_table(table, i, where) for i, table in enumerate(board.tables)],
    }


def _headline(table: Table, tables: Sequence[Table]) -> tuple[bool, bool, int, int]:
    """Return the sort key, the highest first, of what a board opens on: with a held-out twin, pretrained, repeated."""
    twins = {other.split for other in tables if (other.dataset, other.network) == (table.dataset, table.network)}
    rows = table.numbers.rows
    pretrained = bool(table.runs[0].config.get("model.weights_sha256"))
    return len(twins) > 1, pretrained, sum(len(row.seeds) >= REPEATED for row in rows), len(rows)


def _method(name: str, page_of: PageOf) -> dict[str, str]:
    known = registry.known(name)
    if known is None:  # of a package or a file that is not here
        return {"title": "", "venue": "", "page": ""}
    return {"title": known.title, "venue": known.venue, "page": page_of(name)}


def _table(table: Table, number: int, where: Path | None) -> dict[str, Any]:
    numbers = table.numbers
    head, lines = headline_first(numbers)
    known = formats.content(numbers)
    head = [*head, COST]
    rows = [
        record
        | _row(row, line, where)
        | {
            "base": _base(row, numbers.rows),
            "by_seed": {
                seed: {known["fields"].get(column, column): value for column, value in values.items()}
                for seed, values in record["by_seed"].items()
            },
        }
        for row, record, line in zip(numbers.rows, known["rows"], lines, strict=True)
    ]
    dataset, network, budget = table.dataset, table.network, run_facts.budget(table.runs)
    return known | {
        "columns": [known["fields"][column] for column in numbers.columns],
        "id": f"t{number}",
        "name": f"{dataset}, {network}: {dict(budget)[run_facts.TRAINING]}",
        "dataset": dataset,
        "network": network,
        "split": table.split,
        "statistics": table.statistics,
        "budget": budget,
        "differs": table.differs,
        "head": head,
        "command": _command(table),
        "rows": rows,
    }


def _row(row: Row, line: formats.Line, where: Path | None) -> dict[str, Any]:
    """Return what the page has of a row besides its record: text of its cells, marks, runs and commands."""
    runs = list(row.runs)
    cost = mean(_megabytes(run) for run in runs)
    return {
        "cells": [*(cleaned(cell, len(cell)) for cell in line.cells), "-" if cost is None else f"{cost:.2f}"],
        COST: cost,
        "best": sorted(line.best),
        "tuned": row.tuned,
        "baseline": row.is_baseline,
        "runs": [run.name for run in row.runs],
        "files": [[run.name, run.results.seed, relative(run.place, where)] for run in runs],
        "commands": commands(runs),
        "scored again": scored_again(runs),
    }


def _megabytes(run: Run) -> float | None:
    """Return the megabytes of all messages of a round, both ways; None for a run that does not say."""
    up, down, rounds = run.results.bytes_up, run.results.bytes_down, run.last_round
    return None if up is None or down is None or not rounds else (up + down) / rounds / 1e6


def _base(row: Row, rows: Sequence[Row]) -> int | None:
    """Return the place of the row that a row's difference is to, of the baseline its own; None without either."""
    base = baseline(row, rows)
    compared = base is not None and (base is row or row.difference is not None)
    return next(i for i, other in enumerate(rows) if other is base) if compared else None


def _command(table: Table) -> str:
    """Return the command that prints the table: of the folders of its runs, or of files where a folder holds others."""
    own = {run.place for run in table.runs}
    folders = {run.place.parent for run in table.runs if run.place.parent.is_dir()}
    complete = {folder for folder in folders if {place for place in held(folder) if finished(place)} <= own}
    places = dict.fromkeys(run.place.parent if run.place.parent in complete else run.place for run in table.runs)
    options = ["--unseen"] if table.split == UNSEEN else []
    options += [] if table.score == "last5" else ["--score", table.score]
    return shlex.join(["fedshift", "compare", *map(from_here, places), *options])
