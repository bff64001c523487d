"""Counts what a folder takes of the disk."""

import contextlib
from pathlib import Path


def bytes_in(folder: Path) -> int:
    """Return the bytes of all files in a folder, without those that are removed meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.lstat().st_size if path.is_file() else 0
    return total
