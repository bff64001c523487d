"""Escapes cells of CSV files that a spreadsheet would take for a formula: names may come from other people."""

import csv
import io
from collections.abc import Iterable
from typing import Any

#: Starts of a text that spreadsheets take for a formula or a command (OWASP, "CSV Injection"); the last four are
#: wide forms, which some spreadsheets read alike.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
QUOTE = "'"


def harmless(value: Any) -> Any:
    """Return a cell with an apostrophe before a text that begins like a formula; numbers stay numbers.

    Args:
        value: A number, None, or a text. A text that is a number, such as ``-1.5``, stays unchanged.
    """
    if not isinstance(value, str) or _is_number(value):
        return value
    return QUOTE + value if value.startswith(FORMULA) or value.strip().startswith(FORMULA) else value


def harmless_row(cells: Iterable[Any]) -> list[Any]:
    """Return a row of :func:`harmless` cells."""
    return [harmless(cell) for cell in cells]


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows of :func:`harmless` cells as the text of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(harmless_row, rows))
    return text.getvalue()


def _is_number(text: str) -> bool:
    if text != text.strip() or "_" in text:
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True
