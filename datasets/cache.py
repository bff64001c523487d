"""Decoded images, kept: one memory-mapped uint8 array per domain and split, shared by all processes.

A part is a folder that appears at once, complete (it is renamed into place). Its name carries the
fingerprint of the source files (names, sizes, times) and of the images' size and form, so that a changed source
means another part; its ``meta.json`` says what must be in it, so that a truncated, damaged or foreign
part is noticed and built anew. Nobody but its owner can read a part, whatever the umask is. Who asks for
the hash of its content finds it beside, once it was worked out.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets import files, private_files
from datasets.base import PLAIN, Form, ImageSet
from datasets.decode import Progress, decode_into, no_progress
from datasets.listing import Arrays, Found, Listing
from fedshift_wire.bounds import shown
from fedshift_wire.errors import DataError

FORMAT = 1
CACHE_DIR = "FEDSHIFT_CACHE"  # environment variable: where parts are kept
HASHED = 1024  # images that are hashed at a time
PROBES = 64  # images whose checksum is compared when a part is opened
X_FILE, Y_FILE, META_FILE = "x.npy", "y.npy", "meta.json"
CONTENT_FILE = "content.sha256"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Part:
    """One domain and split at one size, by the names that a folder can bear."""

    dataset: str
    domain: str
    split: str
    size: int
    form: Form = PLAIN

    @property
    def stem(self) -> str:
        """The beginning of the names of its folders; none is the beginning of another form's."""
        return f"{self.dataset}-{self.domain}-{self.split}{self.form.mark}-{self.size}px"


def cache_dir() -> Path:
    """Return where parts are kept: ``$FEDSHIFT_CACHE``, or ``~/.cache/fedshift/images``."""
    named = os.environ.get(CACHE_DIR)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "fedshift" / "images"


def load(part: Part, found: Found, *, workers: int = 1, progress: Progress = no_progress) -> ImageSet:
    """Return the images of a part, decoding them only if no good copy is kept.

    The arrays are memory-mapped, copy on write: all processes of a machine share the pages they read.

    Raises:
        DataError: If an image cannot be read, or the cache cannot be written.
    """
    return _load(part, found, workers, progress)[0]


def content(part: Part, found: Found) -> str:
    """Return a hash of the decoded images and labels of a part: of what they are, not of when a file was written.

    It is worked out once for each kept copy, which takes one pass over it.

    Raises:
        DataError: If an image cannot be read, or the cache cannot be written.
    """
    images, folder = _load(part, found)
    path = folder / CONTENT_FILE
    told = path.read_text(encoding="ascii", errors="replace") if path.is_file() else ""
    if not _SHA256.fullmatch(told):
        told = content_of(images)
        with writing(folder), _lock(folder):
            beside = path.with_suffix(".part")
            private_files.make(beside)
            _write_synced(beside, told)
            beside.replace(path)
    return told


def content_of(images: ImageSet) -> str:
    """Return the SHA-256 of images and labels, with their shape."""
    digest = hashlib.sha256(f"{images.x.shape}".encode())
    for first in range(0, len(images), HASHED):  # the whole of a mapped file would be read into memory at once
        digest.update(images.x[first : first + HASHED].tobytes())
    digest.update(images.y.tobytes())
    return digest.hexdigest()


def _load(part: Part, found: Found, workers: int = 1, progress: Progress = no_progress) -> tuple[ImageSet, Path]:
    """Return the images of a part and the folder of their kept copy."""
    mark = fingerprint(found, part.size, part.form)
    folder = cache_dir() / f"{part.stem}-{mark[:16]}"
    kept = _open(folder, mark)
    if kept is not None:
        return kept, folder
    with writing(folder), _lock(folder):
        kept = _open(folder, mark)  # another process may have built it meanwhile
        if kept is None:
            _build(folder, mark, part, found, workers, progress)
            kept = _open(folder, mark)
    if kept is None:
        raise DataError(f"{shown(folder)}: the cache was written but cannot be read back; is the disk full or failing?")
    return kept, folder


def fingerprint(found: Found, size: int, form: Form = PLAIN) -> str:
    """Return a hash of what decides the content of a part: its source files, labels, the images' size and form."""
    other = "" if form == PLAIN else f" {form.resize} {form.window}"  # parts that were kept before there were others
    digest = hashlib.sha256(f"{FORMAT} {size}{other}".encode())
    if isinstance(found, Listing):
        for item in found.items:
            digest.update(_encoded(f"{item.name} {item.offset} {item.length}\n"))
        digest.update(found.labels.tobytes())
    elif found.mark:
        digest.update(_encoded(f"{found.mark}\n"))
    for path in _sources(found):
        with files.reading(path):
            stat = path.stat()
        digest.update(_encoded(f"{path} {stat.st_size} {stat.st_mtime_ns}\n"))
    return digest.hexdigest()


def _encoded(text: str) -> bytes:
    """Return a text with names of files as bytes: a name may hold some that are no UTF-8."""
    return text.encode(errors="surrogateescape")


def _sources(found: Found) -> list[Path]:
    if isinstance(found, Arrays):
        return list(found.files)
    return list(dict.fromkeys(item.path for item in found.items))


def _build(folder: Path, mark: str, part: Part, found: Found, workers: int, progress: Progress) -> None:
    """Write a part beside its place and rename it into it; remove what an older source left."""
    temporary = Path(tempfile.mkdtemp(prefix=f".{part.stem}-", dir=folder.parent))
    try:
        for name in (X_FILE, Y_FILE, META_FILE):
            private_files.make(temporary / name)
        x, y = _fill(temporary / X_FILE, part, found, workers, progress)
        np.save(temporary / Y_FILE, y)
        meta = {"format": FORMAT, "fingerprint": mark, "size": part.size, "origin": _origin(found)} | _checksums(x, y)
        _write_synced(temporary / META_FILE, json.dumps(meta))
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for old in folder.parent.glob(f"{part.stem}-*"):
        if old != folder and _meta(old).get("origin") == _origin(found):
            shutil.rmtree(old, ignore_errors=True)


def _fill(
    path: Path, part: Part, found: Found, workers: int, progress: Progress
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if isinstance(found, Listing):
        shape = (len(found), part.size, part.size, 3)
        out = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
        _reserve(path, out.nbytes)
        decode_into(found, out, part.form, workers=workers, progress=progress)
        out.flush()
        return out, found.labels
    images = found.read()
    resized = files.resize(images.x, part.size, part.form.resize)
    np.save(path, resized)
    progress(len(images))
    return resized, images.y


def _reserve(path: Path, size: int) -> None:
    """Write zeros over the last ``size`` bytes: a mapped page that the disk has no room for kills the process."""
    zeros = bytes(1 << 20)
    with path.open("r+b") as file:
        file.seek(-size, os.SEEK_END)
        for first in range(0, size, len(zeros)):
            file.write(zeros[: size - first])


def _open(folder: Path, mark: str) -> ImageSet | None:
    """Return a kept part, or None if there is none or it is not what its ``meta.json`` promises."""
    meta = _meta(folder)
    if meta.get("format") != FORMAT or meta.get("fingerprint") != mark:
        return None
    try:
        # Copy on write: a process that writes does not harm the others, and torch gets writable memory.
        x = np.load(folder / X_FILE, mmap_mode="c", allow_pickle=False)
        y = np.load(folder / Y_FILE, allow_pickle=False)
        size = meta.get("size")
        if x.dtype != np.uint8 or y.dtype != np.int64 or x.shape != (len(y), size, size, 3):
            return None
        return ImageSet(x, y) if _checksums(x, y).items() <= meta.items() else None
    except Exception:  # numpy raises nearly any type on damaged bytes, and the images are decoded anew
        return None


def _checksums(x: NDArray[np.uint8], y: NDArray[np.int64]) -> dict[str, int]:
    """Return checksums of the labels and of some images all over the array."""
    probes = np.linspace(0, len(y) - 1, min(PROBES, len(y))).astype(int)
    crc = 0
    for number in probes:
        crc = zlib.crc32(x[number].tobytes(), crc)
    return {"count": len(y), "labels": zlib.crc32(y.tobytes()), "probes": crc}


def _meta(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / META_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _origin(found: Found) -> str:
    """Return the folder that holds all source files."""
    return os.path.commonpath([str(path.absolute().parent) for path in _sources(found)])


def _write_synced(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Let one process at a time build a part; the others wait for it."""
    private_files.make_folder(folder.parent)
    lock = folder.parent / f".{folder.name}.lock"
    private_files.make(lock)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a full disk or a missing right into an error that says where, and what to do."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write the image cache to {shown(folder.parent)} ({error.strerror or error}); "
            f"set {CACHE_DIR} to a folder with room"
        ) from None
