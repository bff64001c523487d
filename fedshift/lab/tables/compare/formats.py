"""A comparison as text, Markdown, CSV and JSON."""

import json
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedshift.lab.tables.compare import DECIMALS, WIDTH
from fedshift.lab.tables.compare.rows import Row, same_worst
from fedshift.lab.tables.compare.run_facts import TRAINING
from fedshift.lab.tables.compare.table import Numbers
from fedshift.lab.tables.results.differences import MARK, OTHER_IMAGES
from fedshift.lab.tables.results.settings import BASELINE
from fedshift.lab.tables.results.statistics import Paired, Spread
from fedshift_app.run.logs import cleaned
from fedshift_core.accuracies import WORST
from fedshift_core.cells import csv_text
from fedshift_core.plural import plural

#: Fields of a row's record, heads of a table, and columns of a board's file that stand next to columns of sites.
_FIELDS = frozenset(
    (
        "row",
        "method",
        "group",
        "scored",
        "seeds",
        "n",
        "p",
        "p (Holm)",
        "worst domain",
        "difference",
        "difference std",
        "difference seeds",
        "difference low",
        "difference high",
        "no difference",
        "mean over other images",
        "contradictions",
        "paper row",
        "not the paper's",
        "where the paper is silent",
        "runs",
        "by_seed",
        "altered",
        "readings",
        "cells",
        "best",
        "tuned",
        "baseline",
        "base",
        "files",
        "command",
        "commands",
        "scored again",
        "data set",
        "network",
        "split",
        "statistics",
        "settings",
        "score",
        TRAINING,
        "image size",
        "pretrained weights",
        "arithmetic",
        "nodes",
    )
)
_OF_COLUMN = (" std", " n", " paper")  # end further fields of a column


@dataclass(frozen=True)
class Line:
    """A line of the table.

    ``best`` holds the indices of its marked cells. ``aside`` marks a line that is not a row of ours.
    """

    cells: tuple[str, ...]
    best: frozenset[int] = frozenset()
    aside: bool = False


def text(numbers: Numbers, width: int | None = None, decimals: int = DECIMALS) -> str:
    """Return aligned lines; columns that do not fit follow in blocks that repeat the methods."""
    head, lines = grid(numbers, decimals)
    starred = {i for line in lines for i in line.best}
    marks = [["*" if i in line.best else " " if i in starred else "" for i in range(len(head))] for line in lines]
    marked = [list(map(str.__add__, line.cells, mark)) for line, mark in zip(lines, marks, strict=True)]
    return text_table(numbers.title, head, marked, numbers.warnings, numbers.notes, width)


def text_table(
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    warnings: Sequence[str],
    notes: Sequence[str],
    width: int | None = None,
    repeated: int = 1,
) -> str:
    """Return a table of text with its title, warnings and notes, at most ``width`` wide as long as one column fits.

    Args:
        title: What it shows.
        head: The name of each column.
        rows: The cells.
        warnings: Lines below it.
        notes: Further lines.
        width: None for that of the terminal.
        repeated: The first columns, which begin each block of the columns that do not fit beside them.
    """
    width = width or shutil.get_terminal_size((WIDTH, 24)).columns
    grid = [head, *rows]
    widths = [max(len(row[i]) for row in grid) for i in range(len(head))]
    first = list(range(repeated))
    blocks = [list(first)]
    for i in range(repeated, len(head)):
        if len(blocks[-1]) > repeated and sum(widths[j] + 2 for j in blocks[-1]) + widths[i] > width:
            blocks.append(list(first))
        blocks[-1].append(i)
    out = [*textwrap.wrap(title, width), ""]
    for block in blocks:
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in block[1:])]).rstrip() for row in grid
        ]
        out += [lines[0], "  ".join("-" * widths[i] for i in block), *lines[1:], ""]
    for line in (*(f"warning: {warning}" for warning in warnings), *(f"- {note}" for note in notes)):
        out += textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return harmless("\n".join(out))


def markdown(numbers: Numbers, decimals: int = DECIMALS) -> str:
    """Return a table and its notes, with the best of each column in bold."""
    head, lines = grid(numbers, decimals)
    rows = [[f"**{cell}**" if i in line.best else escaped(cell) for i, cell in enumerate(line.cells)] for line in lines]
    return markdown_table(numbers.title, head, rows, numbers.warnings, numbers.notes)


def markdown_table(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], warnings: Sequence[str], notes: Sequence[str]
) -> str:
    """Return a Markdown table with its title, and under it warnings and notes.

    Args:
        title: What is compared.
        head: The head; the first column is of text, the others are of numbers.
        rows: The rows, in Markdown.
        warnings: What misleads.
        notes: What a reader must know.
    """
    table = [piped(head), piped(["---", *("--:" for _ in head[1:])]), *map(piped, rows)]
    below = [*(f"- **Warning:** {escaped(warning)}" for warning in warnings), *(f"- {escaped(note)}" for note in notes)]
    return harmless("\n".join([f"**{escaped(title)}**", "", *table, "", *below]))


def table_csv(numbers: Numbers) -> str:
    """Return one line per row with numbers in full; unknown values are empty."""
    flat = [record(row, numbers) for row in numbers.rows]
    keys = dict.fromkeys(key for fields in flat for key in fields)
    return csv_text([keys, *([fields.get(key, "") for key in keys] for fields in flat)])


def table_json(numbers: Numbers) -> str:
    """Return all numbers, notes and warnings."""
    return json.dumps(content(numbers), indent=2)


def content(numbers: Numbers) -> dict[str, Any]:
    """Return what :func:`table_json` writes."""
    return {
        "title": numbers.title,
        "columns": numbers.columns,
        "fields": headings(numbers),
        "headline": numbers.headline,
        "paper": numbers.paper,
        "rows": [
            record(row, numbers) | {"runs": [run.name for run in row.runs], "by_seed": row.by_seed} | _altered(row)
            for row in numbers.rows
        ],
        "notes": numbers.notes,
        "warnings": numbers.warnings,
    }


def headings(numbers: Numbers) -> dict[str, str]:
    """Return the name of each column in heads and records, which no other field has: of a site ``p``, ``site p``."""
    return {
        column: f"site {column}"
        if column in _FIELDS or column.startswith("site ") or column.endswith(_OF_COLUMN)
        else column
        for column in numbers.columns
    }


def record(row: Row, numbers: Numbers) -> dict[str, Any]:
    """Return a row as one flat record; its fields of columns are named as :func:`headings` has them."""
    names = headings(numbers)
    fields: dict[str, Any] = {
        "row": row.label,
        "method": row.method,
        "group": row.group,
        "scored": row.scored,
        "seeds": " ".join(map(str, row.seeds)),
    }
    for column in numbers.columns:
        value, name = row.value(column), names[column]
        fields |= {name: value.mean, f"{name} std": value.std, f"{name} n": value.n}
    if WORST in numbers.columns:
        fields["worst domain"] = row.worst
    if row.marks:
        fields["fewer rounds or images"] = "; ".join(f"{column}: {mark}" for column, mark in row.marks.items())
    if row.difference is not None:
        paired = row.difference
        fields |= {
            "difference": paired.difference.mean,
            "difference std": paired.difference.std,
            "difference seeds": " ".join(map(str, paired.seeds)),
            "p": paired.p,
            "p (Holm)": paired.p_holm,
            "difference low": paired.interval and paired.interval[0],
            "difference high": paired.interval and paired.interval[1],
        }
    if row.refused:
        fields["no difference"] = row.refused
    if row.mixed:
        fields["mean over other images"] = row.mixed
    if contradictions := [part.contradiction for part in row.runs if part.contradiction]:
        fields["contradictions"] = "; ".join(contradictions)
    if row.paper is not None:
        fields |= {
            "paper row": row.paper.label,
            "not the paper's": "; ".join(item.text for item in row.paper.altered),
            "where the paper is silent": "; ".join(item.text for item in row.paper.readings),
        }
        for column in numbers.columns:
            name = names[column]
            fields |= {
                f"{name} paper": row.paper.values[column].mean,
                f"{name} less paper": row.paper.difference[column],
            }
    return fields


def _altered(row: Row) -> dict[str, Any]:
    """Return the values that differ from the paper, by key and as YAML, with the paper's values.

    The second part holds values that the paper leaves open and that differ from our reading.
    """
    if row.paper is None:
        return {}
    return {
        "altered": {item.key: {"ours": item.ours, "paper": item.paper} for item in row.paper.altered},
        "readings": {
            item.key: {"ours": item.ours, "reading": item.paper, "why": item.why} for item in row.paper.readings
        },
    }


def grid(numbers: Numbers, decimals: int = DECIMALS) -> tuple[tuple[str, ...], list[Line]]:
    """Return the head and the lines of the table; the difference is shown next to the column that it is of."""
    compared = numbers.headline in numbers.columns and any(
        row.difference is not None or row.refused for row in numbers.rows
    )
    tested = any(row.difference is not None and row.difference.p is not None for row in numbers.rows)
    extra = (f"{numbers.headline} - {BASELINE}", *(("p", "p (Holm)") if tested else ())) if compared else ()
    names = headings(numbers)
    head = ("method", "scored", "n", *(names[column] for column in numbers.columns), *extra)
    lines = []
    group = ""
    named = not same_worst(numbers.rows)  # else a note names it
    for row in numbers.rows:
        if row.group != group:
            group = row.group
            lines.append(Line((f"[{group}]", *("" for _ in head[1:])), aside=True))
        cells = [row.label, row.scored, f"{len(row.seeds)}{MARK if row.mixed else ''}"]
        cells += [_cell(row, column, named, decimals) for column in numbers.columns]
        if compared:
            paired = row.difference
            refused = OTHER_IMAGES if row.refused else ""
            cells.append(number(paired.difference, decimals, "+", "missing") if paired else refused)
            cells += p_values(paired) if tested else ()
        best = frozenset(i for i, column in enumerate(numbers.columns, start=3) if column in row.best)
        lines.append(Line(tuple(cells), best))
        lines += _paper_lines(row, numbers, len(extra), decimals)
    return head, lines


def _cell(row: Row, column: str, named: bool, decimals: int) -> str:
    mark = f" ({row.marks[column]})" if column in row.marks else ""
    worst = f" {row.worst}" if named and column == WORST and row.worst else ""
    return number(row.value(column), decimals, missing="missing" if column in row.values else "-") + mark + worst


def _paper_lines(row: Row, numbers: Numbers, extra: int, decimals: int) -> list[Line]:
    if row.paper is None:
        return []
    printed = [number(row.paper.values[column], decimals) for column in numbers.columns]
    less = [number(Spread(row.paper.difference[column]), decimals, "+") for column in numbers.columns]
    empty = [""] * extra
    label = row.paper.label + ("" if row.paper.certain else " (a reading)")
    count = len(row.paper.altered)
    differ = f" ({plural(count, 'setting differs', 'settings differ')})" if count else ""
    return [
        Line((f"  paper: {label}", "", "", *printed, *empty), aside=True),
        Line((f"  ours - paper{differ}", "", "", *less, *empty), aside=True),
    ]


def number(value: Spread, decimals: int = DECIMALS, sign: str = "", missing: str = "-") -> str:
    """Return a mean with its spread, to so many decimals; ``missing`` without a mean."""
    if value.mean is None:
        return missing
    return f"{value.mean:{sign}.{decimals}f}" + ("" if value.std is None else f" ± {value.std:.{decimals}f}")


def p_values(paired: Paired | None) -> tuple[str, str]:
    """Return p and the corrected p of a difference to three digits, empty where there is none."""
    values = (None, None) if paired is None else (paired.p, paired.p_holm)
    first, second = ("" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}" for p in values)
    return first, second


def harmless(text: str) -> str:
    """Return text without control characters, which a results file could contain."""
    return cleaned(text, len(text))


def piped(cells: Sequence[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Return text in which Markdown marks nothing."""
    for mark in "\\|*_<>":
        text = text.replace(mark, f"\\{mark}")
    return text
