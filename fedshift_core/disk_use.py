"""Counts what a folder takes of the disk, and keeps some of the disk free."""

import contextlib
import errno
import os
import shutil
from pathlib import Path

#: Bytes of a disk that large files leave free: for logs, ledgers and databases, which go on.
RESERVE = 1 << 28
LARGE = 1 << 20  # bytes of a file from which it is large


def bytes_in(folder: Path) -> int:
    """Return the bytes of all files in a folder, without those that are removed meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.lstat().st_size if path.is_file() else 0
    return total


def existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def check_room(folder: Path, size: int) -> None:
    """Refuse a large file that would leave less than ``RESERVE`` free.

    Raises:
        OSError: As from a full disk.
    """
    if size >= LARGE and shutil.disk_usage(folder).free - size < RESERVE:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: the last {RESERVE >> 20} MiB stay free")
