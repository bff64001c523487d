"""Rows of a table as lines of text."""

from collections.abc import Sequence


def columns(
    rows: Sequence[Sequence[str]], indent: str = "  ", *, numbers: bool = False, ruled: bool = False
) -> list[str]:
    """Return rows as lines with aligned columns.

    Args:
        rows: The cells.
        indent: What each line begins with.
        numbers: Whether all columns but the first are aligned to the right.
        ruled: Whether a rule follows the first row.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    aligned = [str.ljust, *[str.rjust if numbers else str.ljust] * (len(widths) - 1)]
    padded = [[pad(cell, width) for pad, cell, width in zip(aligned, row, widths, strict=True)] for row in rows]
    lines = [indent + "  ".join(row).rstrip() for row in padded]
    return [lines[0], indent + rule(rows), *lines[1:]] if ruled else lines


def rule(rows: Sequence[Sequence[str]]) -> str:
    """Return a line of dashes under each column of the rows."""
    return "  ".join("-" * max(map(len, column)) for column in zip(*rows, strict=True))
