"""Finds paths that lead to one file: by another spelling, a link, or a disk that ignores letter case."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_datasets.io import looks

#: Identifies a file for all its paths. It has size and time, as some network disks use an inode number twice.
Identity = tuple[int, int, int, int]


def identity(path: Path) -> Identity | None:
    """Return the identity of a file for all its paths; None if there is no accessible file."""
    try:
        status = os.stat(path)  # noqa: PTH116 - twice as fast
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def refuse(lists: Sequence[tuple[str, ...]], where: str = "") -> None:
    """Refuse two paths, in any of several lists, that lead to one file.

    Raises:
        DataError: With both, after what begins the message.
    """
    if pair := twice_in(lists):
        raise DataError(f"{where}{shown(pair[0])} and {shown(pair[1])} are one file; keep one of them")


def twice_in(lists: Sequence[tuple[str, ...]]) -> tuple[Path, Path] | None:
    """Return the first two paths of several lists, one after the other, that lead to one file; None if all differ."""
    seen = np.concatenate([np.empty((0, 5), np.int64), *map(looks.some, lists)])
    inodes = np.sort(seen[seen[:, looks.SIZE] >= 0, looks.INODE])
    shared = inodes[1:][inodes[1:] == inodes[:-1]]
    if not len(shared):
        return None
    starts = np.cumsum([0, *map(len, lists)])

    def path(place: int) -> Path:
        number = int(np.searchsorted(starts, place, side="right")) - 1
        return Path(lists[number][place - int(starts[number])])

    first: dict[tuple[int, ...], int] = {}
    for place in np.flatnonzero(np.isin(seen[:, looks.INODE], shared) & (seen[:, looks.SIZE] >= 0)).tolist():
        mark = tuple(seen[place, : looks.CHANGED].tolist())
        if first.setdefault(mark, place) != place:
            return path(first[mark]), path(place)
    return None
