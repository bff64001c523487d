"""Looks at the file system's entries of files: a row of whole numbers for each.

A start compares all files several times: for their fingerprint, for replaced ones, for two paths to one file. Within
:func:`handed_on` each list of files is looked at once, and what was seen is handed on.
"""

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from itertools import chain
from operator import attrgetter

import numpy as np

from fedshift_datasets.arrays import Indices
from fedshift_datasets.io.reading import reading

#: What is seen of a file, by column: its disk, inode, bytes, times of writing and of change in nanoseconds.
DISK, INODE, SIZE, WRITTEN, CHANGED = range(5)
_COLUMNS = attrgetter("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
#: Nanoseconds that something must be unchanged before it is looked at: two changes within a clock's step look like one.
SETTLED = 2_000_000_000
_ABSENT = (-1,) * 5  # no file has fewer than 0 bytes
_HALF, _WHOLE = 1 << 63, 1 << 64

#: Entries of files, (N, 5), int64.
Entries = Indices

_handed: ContextVar[dict[tuple[str, ...], Entries] | None] = ContextVar("looks", default=None)


@contextlib.contextmanager
def handed_on() -> Iterator[None]:
    """Within this block, take a list of files as it was seen at the first look; in this thread."""
    if _handed.get() is not None:
        yield
        return
    token = _handed.set({})
    try:
        yield
    finally:
        _handed.reset(token)


def at(files: tuple[str, ...], *, again: bool = False) -> Entries:
    """Return the entries of files, (N, 5); links are followed.

    Args:
        files: Their paths.
        again: Look, whatever was seen before, and hand nothing on.

    Raises:
        DataError: If there is no such file.
    """
    seen = _entries(files) if again else some(files)
    missing = np.flatnonzero(seen[:, SIZE] < 0)
    for place in missing.tolist():
        with reading(files[place]):
            os.stat(files[place])  # noqa: PTH116 - says why
    return at(files, again=True) if len(missing) else seen


def some(files: tuple[str, ...]) -> Entries:
    """Return the entries of files, (N, 5); the size of one that is not there is below 0."""
    handed = _handed.get()
    if handed is None:
        return _entries(files)
    if (seen := handed.get(files)) is None:
        seen = handed[files] = _entries(files)
    return seen


def forget(files: tuple[str, ...]) -> None:
    """Hand on no more what was seen of files, as they have changed since."""
    if (handed := _handed.get()) is not None:
        handed.pop(files, None)


def _entries(files: tuple[str, ...]) -> Entries:
    try:
        numbers = chain.from_iterable(map(_COLUMNS, map(os.stat, files)))
        return np.fromiter(numbers, np.int64, 5 * len(files)).reshape(-1, 5)
    except (OSError, ValueError, OverflowError):
        return np.array([_entry(file) for file in files], np.int64).reshape(-1, 5)


def _entry(file: str) -> tuple[int, ...]:
    try:
        numbers: tuple[int, ...] = _COLUMNS(os.stat(file))  # noqa: PTH116
    except (OSError, ValueError):
        return _ABSENT
    # Inodes of some network disks have 64 bits, and a damaged time may have more.
    return tuple((number + _HALF) % _WHOLE - _HALF for number in numbers)
