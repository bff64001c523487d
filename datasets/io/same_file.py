"""Finds paths that lead to one file: by another spelling, a link, or a disk that ignores letter case."""

import os
from collections.abc import Iterable
from pathlib import Path

#: Identifies a file for all its paths. It has size and time, as some network disks use an inode number twice.
Identity = tuple[int, int, int, int]


def identity(path: Path) -> Identity | None:
    """Return the identity of a file for all its paths; None if there is no accessible file."""
    try:
        status = os.stat(path)  # noqa: PTH116 - twice as fast
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def twice(paths: Iterable[Path]) -> tuple[Path, Path] | None:
    """Return the first two paths that lead to one file; None if all files differ."""
    seen: dict[Identity, Path] = {}
    for path in paths:
        file_id = identity(path)
        if file_id is not None and seen.setdefault(file_id, path) is not path:
            return seen[file_id], path
    return None
