"""The folder of one part of the image cache: its files, their checksums, notes, and repair of damaged blocks."""

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_core import private_files
from fedshift_datasets.base import ImageSet
from fedshift_datasets.io import integrity

X_FILE, Y_FILE, META_FILE = "x.npy", "y.npy", "meta.json"
CONTENT_FILE = "content.sha256"


def opened(folder: Path, meta: Mapping[str, Any]) -> ImageSet | None:
    """Return a cached part; None if it is missing or contradicts its ``meta.json``."""
    try:
        # Copy on write: a process that writes does not harm the others, and torch gets writable memory.
        x = np.load(folder / X_FILE, mmap_mode="c", allow_pickle=False)
        y = np.load(folder / Y_FILE, allow_pickle=False)
        size = meta.get("size")
        if x.dtype != np.uint8 or y.dtype != np.int64 or x.shape != (len(y), size, size, 3):
            return None
        return ImageSet(x, y, kept_in=folder) if _label_sums(y).items() <= meta.items() else None
    except Exception:  # numpy raises nearly any type on damaged bytes, and the images are decoded anew
        return None


def checksums(path: Path, x: NDArray[np.uint8], y: NDArray[np.int64]) -> dict[str, Any]:
    """Return checksums of labels (N,) and of blocks of images (N, S, S, 3) in their file."""
    return _label_sums(y) | {"blocks": _block_sums(path, x)}


def per_block(x: NDArray[np.uint8]) -> int:
    """Return the number of images (N, S, S, 3) in a block."""
    return max(1, integrity.BLOCK // max(1, x[:1].nbytes))


def _label_sums(y: NDArray[np.int64]) -> dict[str, int]:
    return {"count": len(y), "labels": zlib.crc32(y.tobytes())}


def read_meta(folder: Path) -> dict[str, Any]:
    """Return the content of a part's ``meta.json``; empty if it is missing or damaged."""
    try:
        content = json.loads((folder / META_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def damaged(folder: Path, meta: Mapping[str, Any]) -> list[int] | None:
    """Return the places of blocks with a wrong checksum; None if the part cannot be repaired."""
    images = opened(folder, meta)
    blocks = meta.get("blocks")
    if images is None or not isinstance(blocks, list):
        return None
    sums = _block_sums(folder / X_FILE, images.x)
    if len(sums) != len(blocks):
        return None
    return [place for place, (now, then) in enumerate(zip(sums, blocks, strict=True)) if now != then]


def images_in(blocks: list[int], x: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the places of the images (N, S, S, 3) in blocks, given by their places."""
    length = per_block(x)
    return np.concatenate([np.arange(at * length, min(len(x), (at + 1) * length)) for at in blocks])


def _block_sums(path: Path, x: NDArray[np.uint8]) -> list[int]:
    return integrity.block_sums(path, path.stat().st_size - x.nbytes, max(1, per_block(x) * x[:1].nbytes))


def mend(path: Path, images: NDArray[np.uint8], index: NDArray[np.int64]) -> None:
    """Overwrite the images at ``index`` (n,) of an array; processes that have it mapped see the new ones.

    Raises:
        OSError: If it cannot be written.
    """
    start = path.stat().st_size - np.load(path, mmap_mode="r", allow_pickle=False).nbytes
    with path.open("r+b") as file:
        for image, place in zip(images, index.tolist(), strict=True):
            file.seek(start + place * image.nbytes)
            file.write(image.tobytes())
        file.flush()
        os.fsync(file.fileno())


def linked(mark: str, folder: Path) -> str:
    """Return a hash of content with a checksum of it and of its pixels."""
    return f"{mark} {_link(mark, read_meta(folder))}"


def _link(text: str, meta: Mapping[str, Any]) -> int:
    return zlib.crc32(repr((text, meta.get("labels"), meta.get("blocks"))).encode())


def note(folder: Path, name: str) -> Any:
    """Return what was noted of a part's images under a name; None if there is nothing, or of other images.

    The part's sources and checksums are compared whenever it is opened (:mod:`fedshift_datasets.io.cache`).
    """
    try:
        content = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        return content["note"] if content["link"] == _link(json.dumps(content["note"]), read_meta(folder)) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_note(folder: Path, name: str, content: Any, meta: Mapping[str, Any] | None = None) -> None:
    """Keep what was found out about a part's images.

    Args:
        folder: The part's folder.
        name: Of the note.
        content: What JSON can hold.
        meta: Of the part, where it is not written yet.

    Raises:
        OSError: If it cannot be written.
    """
    link = _link(json.dumps(content), read_meta(folder) if meta is None else meta)
    replace(folder / f"{name}.json", json.dumps({"link": link, "note": content}))


def replace(path: Path, content: str | bytes) -> None:
    """Write a file of a part completely or not at all."""
    part = path.with_suffix(".part")
    private_files.make(part)
    write_synced(part, content)
    part.replace(path)


def write_synced(path: Path, content: str | bytes) -> None:
    """Write a file so that it is on the disk when this returns."""
    with path.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
