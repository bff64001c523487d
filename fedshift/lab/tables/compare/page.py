"""The page of a comparison: figures, table, notes and links to the runs' reports in one file."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedshift.lab.pages.report import REPORT_FILE
from fedshift.lab.tables.compare import figures, formats
from fedshift.lab.tables.compare.rows import Row, runs_of
from fedshift.lab.tables.compare.run_facts import budget
from fedshift.lab.tables.compare.table import Numbers
from fedshift.lab.tables.results.loading import Run
from fedshift.run.texts import render

OPEN = 30  # the list of runs is open up to this number


def page(numbers: Numbers, where: Path | None = None) -> str:
    """Return the page as HTML; all text is escaped.

    Args:
        numbers: The comparison.
        where: The file to which the page will be written, for relative links to reports; None for no links.
    """
    head, lines = headline_first(numbers)
    drawn, lacking = figures.plots(numbers)
    runs = [_run(numbers, row, run, where) for row in numbers.rows for run in row.runs]
    facts = budget(runs_of(numbers.rows))
    content = {
        "title": numbers.title,
        "warnings": numbers.warnings,
        "facts": facts,
        "head": head,
        "lines": lines,
        "plots": drawn,
        "lacking": lacking,
        "notes": numbers.notes,
        "runs": runs,
        "headline": numbers.headline,
        "most": OPEN,
    }
    return render("compare", content)


def headline_first(numbers: Numbers) -> tuple[list[str], list[formats.Line]]:
    """Return heads and lines of a table with the headline next to the names, where a phone shows it."""
    head, lines = formats.grid(numbers)
    if numbers.headline not in head:
        return list(head), lines
    at = head.index(numbers.headline)
    order = [0, at, *(k for k in range(1, len(head)) if k != at)]
    return [head[k] for k in order], [
        replace(line, cells=tuple(line.cells[k] for k in order), best=frozenset(map(order.index, line.best)))
        for line in lines
    ]


def _run(numbers: Numbers, row: Row, run: Run, where: Path | None) -> tuple[Any, ...]:
    """Return a run's line of the table of runs: row, seed, value, and its name with the link to its report."""
    value = row.by_seed[run.results.seed].get(numbers.headline)
    shown_value = "missing" if value is None else f"{value:.2f}"
    return row.name, run.results.seed, shown_value, {"name": run.name, "href": relative(run.place / REPORT_FILE, where)}


def relative(path: Path, where: Path | None) -> str:
    """Return the relative link from a page to a file or folder; empty if there is none, or the page has no place."""
    if where is None or not path.exists():
        return ""
    return quote(os.path.relpath(path.resolve(), where.resolve().parent), errors="surrogateescape")
