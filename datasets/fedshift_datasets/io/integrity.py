"""Checks that source files, and pixels decoded from them, have not changed.

Source files: size and time of writing can stay the same when a file is replaced (``tar``, ``cp -p``, a switched link).
So inodes and times of change are compared too; if only these differ, as after a copy, the content decides.

Pixels: each block of about a mebibyte has a checksum, compared when a process first opens it. Processes that start
within ten minutes share one check: the first one writes a note next to the file, which is valid while the file's inode,
size and times stay the same.
"""

import hashlib
import json
import time
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedshift_core import private_files
from fedshift_datasets.io import looks, pool
from fedshift_datasets.io.looks import Entries

BLOCK = 1 << 20  # bytes per checksum, about
NOTE_FILE = "checked.json"
NOTE_SECONDS = 600.0  # for which other processes trust a note
#: Seconds after a file's last change in which another change may have the same time; it is checked again until then.
_UNSETTLED = 0.1

#: Files that this process has checked, with their identity.
_checked: dict[str, list[int]] = {}

Verdict = Literal["same", "renewed", "changed"]


def stamp(seen: Entries, *, inodes: bool = True) -> str:
    """Return a hash of files' inodes and times of change.

    Args:
        seen: The file system's entry of each file, in a fixed order.
        inodes: Whether their inodes count in addition to their times of change.
    """
    columns = [looks.INODE, looks.CHANGED] if inodes else [looks.CHANGED]
    return hashlib.sha256(np.ascontiguousarray(seen[:, columns]).data).hexdigest()


def state(seen: Entries) -> str:
    """Return a hash of files' sizes and times of writing, by which their content is known unless someone sets them."""
    return hashlib.sha256(np.ascontiguousarray(seen[:, [looks.SIZE, looks.WRITTEN]]).data).hexdigest()


def content(sources: Iterable[Path | str], workers: int = 1) -> str:
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
        digest = content(sources, workers)
    now = looks.at(sources, again=True)
    if stamp(now, inodes=False) != stamp(before, inodes=False):
        looks.forget(sources)
        return {"stamp": "", "sources": ""}
    return {"stamp": stamp(now), "sources": digest}


def verdict(kept: Mapping[str, Any], sources: tuple[str, ...], workers: int = 1) -> Verdict:
    """Return whether files have changed since a seal was made; their content is read only if necessary.

    ``renewed``: they have other inodes or times of change, but the same content.

    Raises:
        DataError: If one cannot be read.
    """
    if kept.get("stamp") == stamp(looks.at(sources)):
        return "same"
    return "renewed" if kept.get("sources") == content(sources, workers) else "changed"


def block_sums(path: Path, start: int, length: int) -> list[int]:
    """Return the checksums of a file's blocks.

    Args:
        path: The file; it is read, not mapped, so that the process stays small.
        start: Start of the first block, in bytes.
        length: Bytes of a block; the last one may be shorter.

    Raises:
        OSError: If it cannot be read.
    """
    sums = []
    with path.open("rb") as file:
        file.seek(start)
        while block := file.read(length):
            sums.append(zlib.crc32(block))
    return sums


def is_checked(path: Path) -> bool:
    """Return whether this process, or another one recently, has compared the checksums of a file."""
    identity = _identity(path)
    if identity is None:
        return False
    if _checked.get(str(path)) == identity:
        return True
    try:
        note = json.loads((path.parent / NOTE_FILE).read_text(encoding="ascii"))
        fresh = 0 <= time.time() - note["at"] < NOTE_SECONDS
    except (OSError, ValueError, TypeError, KeyError):
        return False
    if not fresh or note.get("identity") != identity:
        return False
    _checked[str(path)] = identity
    return True


def note_checked(path: Path) -> None:
    """Note that a file has its checksums, for this process and, if possible, for others."""
    identity = _identity(path)
    if identity is None or time.time() - max(identity[-2:]) / 1e9 < _UNSETTLED:
        return
    _checked[str(path)] = identity
    note, part = path.parent / NOTE_FILE, path.parent / f"{NOTE_FILE}.part"
    try:
        private_files.make(part)
        part.write_text(json.dumps({"identity": identity, "at": time.time()}), encoding="ascii")
        part.replace(note)
    except OSError:  # only the owner may write to this cache
        return


def _identity(path: Path) -> list[int] | None:
    """Return numbers that change whenever a file does."""
    try:
        about = path.stat()
    except OSError:
        return None
    return [about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns]
