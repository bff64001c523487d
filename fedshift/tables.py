"""Rows, facts and names as lines of text."""

import textwrap
from collections.abc import Sequence

WIDTH = 110  # maximum characters of a wrapped line


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


def facts(rows: Sequence[tuple[str, str]], indent: str = "  ") -> list[str]:
    """Return names with their texts as lines; empty texts are left out, long ones are wrapped."""
    filled = [(name, text) for name, text in rows if text]
    width = max(len(name) for name, _ in filled)
    lines = []
    for name, text in filled:
        first, *more = textwrap.wrap(text, WIDTH - width, break_long_words=False, break_on_hyphens=False)
        lines.append(f"{indent}{name:<{width}}  {first}")
        lines += [f"{indent}{'':<{width}}  {line}" for line in more]
    return lines


def wrapped(text: str, indent: str = "      ") -> list[str]:
    """Return a text in lines, each indented; none where it is empty."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
