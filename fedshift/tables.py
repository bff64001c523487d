"""Formats rows and facts as aligned lines."""

import textwrap
from collections.abc import Sequence

WIDTH = 110  # maximum characters of a wrapped line


def columns(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Return rows as lines with aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        indent + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


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
