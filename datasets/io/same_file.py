"""Image paths that lead to one file: by another spelling, a link, or a disk that is blind to letter case."""

from collections.abc import Iterable
from pathlib import Path

#: What two paths to one file have in common. Size and time belong to it: some network disks give a number twice.
Identity = tuple[int, int, int, int]


def identity(path: Path) -> Identity | None:
    """Return what all paths to a file have in common; None where there is no file that can be looked at."""
    try:
        about = path.stat()
    except (OSError, ValueError):
        return None
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


def twice(paths: Iterable[Path]) -> tuple[Path, Path] | None:
    """Return the first two paths that lead to one file; None if all files differ."""
    seen: dict[Identity, Path] = {}
    for path in paths:
        about = identity(path)
        if about is None:
            continue
        if about in seen:
            return seen[about], path
        seen[about] = path
    return None
