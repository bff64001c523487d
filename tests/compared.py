"""Parts of a comparison that several tests look at."""

from pathlib import Path
from typing import Any

from fedshift.lab.tables.compare import compare
from fedshift.lab.tables.compare.table import Numbers


def numbers(runs: list[Path], **options: Any) -> Numbers:
    return compare(runs, **options).numbers


def labels(runs: list[Path], **options: Any) -> list[str]:
    return [row.label for row in numbers(runs, **options).rows]


def notes(runs: list[Path], *words: str, **options: Any) -> list[str]:
    """Return the notes with one of these words."""
    return [note for note in numbers(runs, **options).notes if any(word in note for word in words)]
