"""Rows, facts and names as lines of text."""

import textwrap
from collections.abc import Sequence

from fedshift_core.text_columns import columns as columns
from fedshift_core.text_columns import rule as rule

WIDTH = 110  # maximum characters of a wrapped line


def facts(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return names with their texts as lines; empty texts are left out, long ones are wrapped."""
    filled = [(name, text) for name, text in rows if text]
    width = max(len(name) for name, _ in filled)
    lines = []
    for name, text in filled:
        first, *more = textwrap.wrap(text, WIDTH - width, break_long_words=False, break_on_hyphens=False)
        lines.append(f"  {name:<{width}}  {first}")
        lines += [f"  {'':<{width}}  {line}" for line in more]
    return lines


def wrapped(text: str) -> list[str]:
    """Return a text in lines, each indented; none where it is empty."""
    indent = " " * 6
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
