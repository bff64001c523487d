"""Checks that source files have not changed since images were decoded from them.

Size and time of writing can stay the same when a file is replaced (``tar``, ``cp -p``, a switched link). So inodes and
times of change are compared too; if only these differ, as after a copy, the content decides.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedshift_datasets.io import looks, pool
from fedshift_datasets.io.looks import Entries

Verdict = Literal["same", "renewed", "changed"]


def stamp(seen: Entries, *, inodes: bool = True) -> str:
    """Return a hash of files' inodes and times of change.

    Args:
        seen: The file system's entry of each file, in a fixed order.
        inodes: Whether their inodes count in addition to their times of change.
    """
    columns = [looks.INODE, looks.CHANGED] if inodes else [looks.CHANGED]
    return hashlib.sha256(np.ascontiguousarray(seen[:, columns]).data).hexdigest()


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
