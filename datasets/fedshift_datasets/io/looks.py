"""Looks at the file system's entries of files, and says which files are one, and which have changed.

A start compares all files several times: for their fingerprint, for replaced ones, for two paths to one file. Within
:func:`handed_on` each list of files is looked at once, and what was seen is handed on.

Size and time of writing can stay the same when a file is replaced (``tar``, ``cp -p``, a switched link). So inodes and
times of change are compared too; if only these differ, as after a copy, the content decides.
"""

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np

from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_datasets.arrays import Indices
from fedshift_datasets.io import pool
from fedshift_datasets.io.presence import reading

P = ParamSpec("P")
T = TypeVar("T")
Verdict = Literal["same", "renewed", "changed"]
#: What is seen of a file, by column: its disk, inode, bytes, times of writing and of change in nanoseconds.
DISK, INODE, SIZE, WRITTEN, CHANGED = range(5)
_COLUMNS = attrgetter("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
#: Nanoseconds that something must be unchanged before it is looked at: two changes within a clock's step look like one.
SETTLED = 2_000_000_000
ABSENT = (-1,) * 5  # no file has fewer than 0 bytes
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
        return np.array([entry(file) for file in files], np.int64).reshape(-1, 5)


def entry(file: str | Path) -> tuple[int, ...]:
    """Return the entry of a file; :data:`ABSENT` if there is no accessible file."""
    try:
        numbers: tuple[int, ...] = _COLUMNS(os.stat(file))  # noqa: PTH116
    except (OSError, ValueError):
        return ABSENT
    # Inodes of some network disks have 64 bits, and a damaged time may have more.
    return tuple((number + _HALF) % _WHOLE - _HALF for number in numbers)


def remembered(most: int) -> Callable[[Callable[Concatenate[Path, P], T]], Callable[Concatenate[Path, P], T]]:
    """Let a function of a file remember its last results, so many, for as long as the file's entry stays the same."""

    def decorated(read: Callable[Concatenate[Path, P], T]) -> Callable[Concatenate[Path, P], T]:
        known: Any = functools.lru_cache(most)(lambda _, *args, **more: read(*args, **more))

        def found(path: Path, /, *args: P.args, **more: P.kwargs) -> T:
            result: T = known(entry(path), path, *args, **more)
            return result

        return found

    return decorated


def refuse(lists: Sequence[tuple[str, ...]], where: str = "") -> None:
    """Refuse two paths, in any of several lists, that lead to one file.

    Raises:
        DataError: With both, after what begins the message.
    """
    if pair := twice_in(lists):
        raise DataError(f"{where}{shown(pair[0])} and {shown(pair[1])} are one file; keep one of them")


def twice_in(lists: Sequence[tuple[str, ...]]) -> tuple[Path, Path] | None:
    """Return the first two paths of several lists, one after the other, that lead to one file; None if all differ."""
    seen = np.concatenate([np.empty((0, 5), np.int64), *map(some, lists)])
    inodes = np.sort(seen[seen[:, SIZE] >= 0, INODE])
    shared = inodes[1:][inodes[1:] == inodes[:-1]]
    if not len(shared):
        return None
    starts = np.cumsum([0, *map(len, lists)])

    def path(place: int) -> Path:
        number = int(np.searchsorted(starts, place, side="right")) - 1
        return Path(lists[number][place - int(starts[number])])

    first: dict[tuple[int, ...], int] = {}
    for place in np.flatnonzero(np.isin(seen[:, INODE], shared) & (seen[:, SIZE] >= 0)).tolist():
        mark = tuple(seen[place, :CHANGED].tolist())
        if first.setdefault(mark, place) != place:
            return path(first[mark]), path(place)
    return None


def stamp(seen: Entries, *, inodes: bool = True) -> str:
    """Return a hash of files' inodes and times of change.

    Args:
        seen: The file system's entry of each file, in a fixed order.
        inodes: Whether their inodes count in addition to their times of change.
    """
    columns = [INODE, CHANGED] if inodes else [CHANGED]
    return hashlib.sha256(np.ascontiguousarray(seen[:, columns]).data).hexdigest()


def contents(sources: Iterable[Path | str], workers: int = 1) -> str:
    """Return a hash of the content of files.

    Raises:
        DataError: If one cannot be read.
    """
    return _of_all(pool.mapped(_digest, sources, workers))


def _of_all(digests: Iterable[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _digest(path: Path | str) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(
    sources: tuple[str, ...], before: Entries, workers: int = 1, digests: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the stamp and content hash of files for :func:`verdict`.

    If the files changed after ``before``, the seal is empty, and results from them are valid this time only.

    Args:
        sources: The files.
        before: Their entries, from before they were read.
        workers: The most processes.
        digests: SHA-256 of files as they were read since; others are read now.

    Raises:
        DataError: If one cannot be read.
    """
    known = digests or {}
    if all(path in known for path in sources):
        digest = _of_all(known[path] for path in sources)
    else:
        digest = contents(sources, workers)
    now = at(sources, again=True)
    if stamp(now, inodes=False) != stamp(before, inodes=False):
        forget(sources)
        return {"stamp": "", "sources": ""}
    return {"stamp": stamp(now), "sources": digest}


def verdict(kept: Mapping[str, Any], sources: tuple[str, ...], workers: int = 1) -> Verdict:
    """Return whether files have changed since a seal was made; their content is read only if necessary.

    ``renewed``: they have other inodes or times of change, but the same content.

    Raises:
        DataError: If one cannot be read.
    """
    if kept.get("stamp") == stamp(at(sources)):
        return "same"
    return "renewed" if kept.get("sources") == contents(sources, workers) else "changed"
