"""Whether source files, and pixels that were decoded from them, are still what they were.

Source files: size and time of writing can stay the same when a file is replaced (``tar``, ``cp -p``, a link that is
switched). So inodes and times of change are compared too; where only these differ, as after a copy, the content
decides.

Pixels: a checksum for each block of about a mebibyte, compared when a process first opens them. What it costs is paid
once for all processes that start within ten minutes: the first one leaves a note next to the file, which holds as long
as the file's inode, size and times stay as they are.
"""

import hashlib
import json
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from datasets.io import files
from fedshift_core import private_files

BLOCK = 1 << 20  # bytes that have a checksum, about
NOTE_FILE = "checked.json"
NOTE_SECONDS = 600.0  # for which other processes believe a note
_READ = 1 << 22  # bytes of a source that are read at a time
#: Seconds after a file's last change in which another one might leave the same time: it is checked again until then.
_UNSETTLED = 0.1

#: Files that this process has checked, with their identity.
_checked: dict[str, list[int]] = {}

Verdict = Literal["same", "renewed", "changed"]


def look(sources: Sequence[Path]) -> list[os.stat_result]:
    """Return what a file system says of files; links are followed.

    Raises:
        DataError: If there is no such file.
    """
    seen = []
    for path in sources:
        with files.reading(path):
            seen.append(path.stat())
    return seen


def stamp(seen: Sequence[os.stat_result], *, inodes: bool = True) -> str:
    """Return a hash of what a file system says of files beyond their size and time of writing.

    Args:
        seen: Of each file, in a fixed order.
        inodes: Whether their inodes count, not their times of change alone.
    """
    lines = [f"{about.st_ino if inodes else ''} {about.st_ctime_ns}" for about in seen]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def content(sources: Sequence[Path], workers: int = 1) -> str:
    """Return a hash of the content of files.

    Raises:
        DataError: If one cannot be read.
    """
    with ThreadPoolExecutor(workers) as pool:
        return hashlib.sha256("".join(pool.map(_digest, sources)).encode()).hexdigest()


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with files.reading(path), path.open("rb") as file:
        while piece := file.read(_READ):
            digest.update(piece)
    return digest.hexdigest()


def seal(sources: Sequence[Path], before: str, workers: int = 1) -> dict[str, str]:
    """Return what :func:`verdict` compares: of files that were read since ``before``, their stamp without inodes.

    If they changed meanwhile, what was made of them is good for this time alone.

    Raises:
        DataError: If one cannot be read.
    """
    now, digest = stamp(look(sources)), content(sources, workers)
    if stamp(look(sources), inodes=False) != before:
        return {"stamp": "", "sources": ""}
    return {"stamp": now, "sources": digest}


def verdict(kept: Mapping[str, Any], sources: Sequence[Path], workers: int = 1) -> Verdict:
    """Return whether files are what they were when a seal was made; their content is read if nothing else can tell.

    ``renewed``: they have other inodes or times of change, and the same content.

    Raises:
        DataError: If one cannot be read.
    """
    if kept.get("stamp") == stamp(look(sources)):
        return "same"
    return "renewed" if kept.get("sources") == content(sources, workers) else "changed"


def block_sums(path: Path, start: int, length: int) -> list[int]:
    """Return the checksums of a file's blocks.

    Args:
        path: The file; it is read, not mapped, so that the process does not grow by it.
        start: Where the first block begins, in bytes.
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
    """Return whether this process, or another one a short time ago, has compared the checksums of a file."""
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
    """Remember, here and for other processes, that a file has its checksums; a note that cannot be left is no error."""
    identity = _identity(path)
    if identity is None or time.time() - max(identity[-2:]) / 1e9 < _UNSETTLED:
        return
    _checked[str(path)] = identity
    note, part = path.parent / NOTE_FILE, path.parent / f"{NOTE_FILE}.part"
    try:
        private_files.make(part)
        part.write_text(json.dumps({"identity": identity, "at": time.time()}), encoding="ascii")
        part.replace(note)
    except OSError:  # a cache that others may read and only its owner may write
        return


def _identity(path: Path) -> list[int] | None:
    """Return what changes whenever a file does."""
    try:
        about = path.stat()
    except OSError:
        return None
    return [about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns]
