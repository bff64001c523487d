"""Decoded images, kept: one memory-mapped uint8 array per domain and split, shared by all processes.

A part is a folder that appears at once, complete (it is renamed into place). Its name carries the
fingerprint of the source files (names, sizes, times of writing) and of the images' size and form, so that a changed
source means another part. Its ``meta.json`` holds what else must be so (:mod:`datasets.io.integrity`): inodes, times of
change and content of the sources, and checksums of all pixels and labels. A part of other sources is built anew, blocks
that are damaged are decoded anew, and a line says so. Nobody but its owner can read a part, whatever the umask is. The
hash of its content is kept next to it, once it was worked out.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.base import PLAIN, Form, ImageSet
from datasets.io import building, files, integrity, part_folder
from datasets.io.decode import Progress, decode_into, no_progress
from datasets.listing import Arrays, Found, Listing
from fedshift_core import private_files
from fedshift_core.errors import DataError
from fedshift_core.limits import shown

FORMAT = 2  # another one where the same files would be decoded to other pixels
CACHE_DIR = "FEDSHIFT_CACHE"  # environment variable: where parts are kept
HASHED = 1024  # images that are hashed at a time
X_FILE, Y_FILE, META_FILE = part_folder.X_FILE, part_folder.Y_FILE, part_folder.META_FILE
CONTENT_FILE = part_folder.CONTENT_FILE

log = logging.getLogger("fedshift")


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


@dataclass(frozen=True)
class _Work:
    """A part, what it is decoded from, and how.

    Attributes:
        part: The part.
        found: Its images, not decoded.
        workers: Threads.
        progress: Called with numbers of images that were decoded.
    """

    part: Part
    found: Found
    workers: int = 1
    progress: Progress = no_progress

    @property
    def sources(self) -> list[Path]:
        """The files that decide its content."""
        return sources_of(self.found)

    def decoded(self, index: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the images at ``index``, decoded."""
        if isinstance(self.found, Listing):
            out = np.empty((len(index), self.part.size, self.part.size, 3), np.uint8)
            decode_into(self.found.select(index), out, self.part.form, workers=self.workers, progress=self.progress)
            return out
        images = files.resize(self.found.read().x[index], self.part.size, self.part.form.resize)
        self.progress(len(index))
        return images


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
    return _load(_Work(part, found, workers, progress))[0]


def content(part: Part, found: Found) -> str:
    """Return a hash of the decoded images and labels of a part: of what they are, not of when a file was written.

    It is worked out once for each kept copy, which takes one pass over it.

    Raises:
        DataError: If an image cannot be read, or the cache cannot be written.
    """
    images, folder = _load(_Work(part, found))
    path = folder / CONTENT_FILE
    written = path.read_text(encoding="ascii", errors="replace") if path.is_file() else ""
    mark = written.partition(" ")[0]
    if written == part_folder.linked(mark, folder):
        return mark
    mark = content_of(images)
    with writing(folder), _lock(folder):
        part_folder.replace(path, part_folder.linked(mark, folder))
    return mark


def content_of(images: ImageSet) -> str:
    """Return the SHA-256 of images and labels, with their shape."""
    digest = hashlib.sha256(f"{images.x.shape}".encode())
    for first in range(0, len(images), HASHED):  # the whole of a mapped file would be read into memory at once
        digest.update(images.x[first : first + HASHED].tobytes())
    digest.update(images.y.tobytes())
    return digest.hexdigest()


def _load(work: _Work) -> tuple[ImageSet, Path]:
    """Return the images of a part and the folder of their kept copy."""
    part = work.part
    seen = integrity.look(work.sources)
    mark = fingerprint(work.found, part.size, part.form, seen)
    folder = cache_dir() / f"{part.stem}-{mark[:16]}"
    meta = part_folder.read_meta(folder)
    if _is_of(meta, mark) and _may_be_taken(folder, meta, work, integrity.stamp(seen)):
        kept = part_folder.opened(folder, meta)
        if kept is not None:
            return kept, folder
    with writing(folder), _lock(folder):
        if not _is_good(folder, mark, work):
            _build(folder, mark, work)
            _is_undamaged(folder, work)
        kept = part_folder.opened(folder, part_folder.read_meta(folder))
    if kept is None:
        raise DataError(f"{shown(folder)}: the cache was written but cannot be read back; is the disk full or failing?")
    return kept, folder


def _may_be_taken(folder: Path, meta: Mapping[str, Any], work: _Work, stamp: str) -> bool:
    """Return whether a part can be taken without the lock: it was checked, or it is sound and nobody may write here."""
    if os.access(folder.parent, os.W_OK):
        return meta.get("stamp") == stamp and integrity.is_checked(folder / X_FILE)
    return integrity.verdict(meta, work.sources, work.workers) != "changed" and part_folder.damaged(folder, meta) == []


def _is_good(folder: Path, mark: str, work: _Work) -> bool:
    """Return whether a part is of these sources and undamaged, after mending what can be; the lock is held."""
    meta = part_folder.read_meta(folder)
    if not _is_of(meta, mark):
        if folder.is_dir():
            log.warning("%s: the cached images are damaged (%s); they are decoded again", shown(folder), META_FILE)
        return False
    verdict = integrity.verdict(meta, work.sources, work.workers)
    if verdict == "changed":
        log.warning(
            "%s: files were replaced by others of the same sizes and times of writing; they are decoded again",
            shown(_origin(work.found)),
        )
        return False
    if verdict == "renewed":
        log.warning(
            "%s: files have other inodes or times of change than when they were decoded, and the same content: the "
            "cached images stay (if each run says so, see docs/guide/datasets.md, Prepared once)",
            shown(_origin(work.found)),
        )  # fmt: skip
        stamp = integrity.stamp(integrity.look(work.sources))
        with contextlib.suppress(OSError):  # on a full disk the next process looks once more
            part_folder.replace(folder / META_FILE, json.dumps(meta | {"stamp": stamp}))
    return integrity.is_checked(folder / X_FILE) or _is_undamaged(folder, work)


def _is_undamaged(folder: Path, work: _Work) -> bool:
    """Return whether all of a part has its checksums, after damaged blocks were decoded anew."""
    meta = part_folder.read_meta(folder)
    damaged = part_folder.damaged(folder, meta)
    images = part_folder.opened(folder, meta)
    if damaged is None or images is None:
        log.warning("%s: the cached images are damaged or cut off; they are decoded again", shown(folder))
        return False
    if damaged:
        index = part_folder.images_in(damaged, images.x)
        log.warning(
            "%s: %d of %d blocks of the cached images are damaged; their %d images are decoded again",
            shown(folder), len(damaged), len(meta["blocks"]), len(index),
        )  # fmt: skip
        part_folder.mend(folder / X_FILE, work.decoded(index), index)
        if part_folder.damaged(folder, meta):  # decoding gives other pixels now: of another version of Pillow
            return False
    integrity.note_checked(folder / X_FILE)
    return True


def fingerprint(found: Found, size: int, form: Form = PLAIN, seen: Sequence[os.stat_result] | None = None) -> str:
    """Return a hash of what decides the content of a part: its source files, labels, the images' size and form.

    Args:
        found: The images.
        size: Their height and width in the part, in pixels.
        form: How they become squares.
        seen: What the file system says of their files, if that was looked up already.

    Raises:
        DataError: If a file is not there.
    """
    other = "" if form == PLAIN else f" {form.resize} {form.window}"  # parts that were kept before there were others
    other += "" if form.exif == PLAIN.exif else f" exif {form.exif}"
    digest = hashlib.sha256(f"{FORMAT} {size}{other}".encode())
    if isinstance(found, Listing):
        for item in found.items:
            digest.update(_encoded(f"{item.name} {item.offset} {item.length}\n"))
        digest.update(found.labels.tobytes())
    elif found.mark:
        digest.update(_encoded(f"{found.mark}\n"))
    sources = sources_of(found)
    for path, stat in zip(sources, integrity.look(sources) if seen is None else seen, strict=True):
        digest.update(_encoded(f"{path} {stat.st_size} {stat.st_mtime_ns}\n"))
    return digest.hexdigest()


def _encoded(text: str) -> bytes:
    """Return a text with names of files as bytes: a name may hold some that are no UTF-8."""
    return text.encode(errors="surrogateescape")


def sources_of(found: Found) -> list[Path]:
    """Return the files that decide the content of what was found, each once."""
    if isinstance(found, Arrays):
        return list(found.files)
    return list(dict.fromkeys(item.path for item in found.items))


def _build(folder: Path, mark: str, work: _Work) -> None:
    """Write a part next to its place and rename it into it; remove what an older source or a killed build left."""
    building.remove_abandoned(folder.parent, frozenset({X_FILE, Y_FILE, META_FILE}))
    part, sources, origin = work.part, work.sources, _origin(work.found)
    with building.folder(folder.parent, part.stem) as temporary:
        for name in (X_FILE, Y_FILE, META_FILE):
            private_files.make(temporary / name)
        before = integrity.stamp(integrity.look(sources), inodes=False)
        x, y = _fill(temporary / X_FILE, work)
        np.save(temporary / Y_FILE, y)
        meta = {"format": FORMAT, "fingerprint": mark, "size": part.size, "origin": origin}
        meta |= integrity.seal(sources, before, work.workers) | part_folder.checksums(temporary / X_FILE, x, y)
        part_folder.write_synced(temporary / META_FILE, json.dumps(meta))
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one
        temporary.rename(folder)
    for old in folder.parent.glob(f"{part.stem}-*"):
        if old != folder and part_folder.read_meta(old).get("origin") == origin:
            shutil.rmtree(old, ignore_errors=True)


def _fill(path: Path, work: _Work) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    part, found = work.part, work.found
    if isinstance(found, Listing):
        shape = (len(found), part.size, part.size, 3)
        out = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
        _reserve(path, out.nbytes)
        decode_into(found, out, part.form, workers=work.workers, progress=work.progress)
        out.flush()
        return out, found.labels
    images = found.read()
    resized = files.resize(images.x, part.size, part.form.resize)
    np.save(path, resized)
    work.progress(len(images))
    return resized, images.y


def _reserve(path: Path, size: int) -> None:
    """Write zeros over the last ``size`` bytes: a mapped page that the disk has no room for kills the process."""
    zeros = bytes(1 << 20)
    with path.open("r+b") as file:
        file.seek(-size, os.SEEK_END)
        for first in range(0, size, len(zeros)):
            file.write(zeros[: size - first])


def _is_of(meta: Mapping[str, Any], mark: str) -> bool:
    return bool(meta.get("format") == FORMAT and meta.get("fingerprint") == mark)


def _origin(found: Found) -> str:
    """Return the folder that holds all source files."""
    return os.path.commonpath([str(path.absolute().parent) for path in sources_of(found)])


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
