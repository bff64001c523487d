"""Caches decoded images: one memory-mapped uint8 array per domain and split, shared by all processes.

A part is a folder that appears at once, complete (it is renamed into place). Its name carries the
fingerprint of the source files (names, sizes, times of writing) and of the images' size and form, so that a changed
source means another part. Its ``meta.json`` holds what else must agree (:mod:`fedshift_datasets.io.integrity`):
inodes, times of change and content of the sources, and checksums of all pixels and labels. A part with other sources
is rebuilt, damaged blocks are decoded again, and a log line says so. Only its owner can read a part, whatever the
umask. The hash of its content is kept next to it after the first use.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_core import private_files
from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_datasets.base import PLAIN, Form, ImageSet
from fedshift_datasets.io import building, files, integrity, looks, part_folder, unchanged
from fedshift_datasets.io.decode import FileFacts, Progress, decode_into, no_progress
from fedshift_datasets.io.looks import Entries
from fedshift_datasets.io.pictures import Header
from fedshift_datasets.listing import Arrays, Files, ImageFiles, Listing

FORMAT = 4  # changes if the same files would be decoded to other pixels or be refused, or have another fingerprint
CACHE_DIR = "FEDSHIFT_CACHE"  # environment variable: the folder of the cache
#: Files of the cache folder with names of image files or patients (fedshift_datasets.io: kept_sites, corrupt_files,
#: patients).
LISTS = ("site-*.list", "site-*.json", "broken-*.json", "patients-*.json")
HASHED = 1024  # images that are hashed at a time
X_FILE, Y_FILE, META_FILE = part_folder.X_FILE, part_folder.Y_FILE, part_folder.META_FILE
CONTENT_FILE = part_folder.CONTENT_FILE
HEADERS = "headers"  # note on the images of a part: what their files say of them
#: Parts of the same images that are kept at most, of other splits, orders of classes or broken images left out.
MOST_PARTS = 8
#: Files of a build.
BUILT = frozenset({X_FILE, Y_FILE, META_FILE, f"{HEADERS}.json", f"{HEADERS}.part"})

log = logging.getLogger("fedshift")


@dataclass(frozen=True)
class Part:
    """One domain and split at one size, by names that are valid for a folder."""

    dataset: str
    domain: str
    split: str
    size: int
    form: Form = PLAIN

    @property
    def stem(self) -> str:
        """The beginning of its folders' names, which differs from that of every other form."""
        return f"{self.dataset}-{self.domain}-{self.split}{self.form.mark}-{self.size}px"


@dataclass(frozen=True)
class _Work:
    """A part, its source files, and how to decode them.

    Attributes:
        part: The part.
        image_files: Its images before decoding.
        workers: The most threads.
        progress: Called with numbers of decoded images.
    """

    part: Part
    image_files: ImageFiles
    workers: int = 1
    progress: Progress = no_progress

    @property
    def sources(self) -> tuple[str, ...]:
        """The files that decide its content."""
        return sources_of(self.image_files)

    def decoded(self, index: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the decoded images at ``index``."""
        if isinstance(self.image_files, Listing):
            out = np.empty((len(index), self.part.size, self.part.size, 3), np.uint8)
            decode_into(
                self.image_files.select(index), out, self.part.form, workers=self.workers, progress=self.progress
            )
            return out
        images = files.resize(self.image_files.read().x[index], self.part.size, self.part.form.resize)
        self.progress(len(index))
        return images


def cache_dir() -> Path:
    """Return the folder of the cache: ``$FEDSHIFT_CACHE``, or ``~/.cache/fedshift/images``."""
    named = os.environ.get(CACHE_DIR)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "fedshift" / "images"


def remove_lists() -> int:
    """Delete what says which files there are and which are broken: their names may tell of patients.

    Whoever needs them makes them again. Returns how many there were.

    Raises:
        OSError: If this user may not delete one.
    """
    lists = [path for pattern in LISTS for path in cache_dir().glob(pattern)]
    for path in lists:
        path.unlink(missing_ok=True)
    return len(lists)


def load(part: Part, image_files: ImageFiles, *, workers: int = 1, progress: Progress = no_progress) -> ImageSet:
    """Return the images of a part, decoded only if the cache has no valid copy.

    The arrays are memory-mapped, copy on write: all processes of a machine share the pages they read.

    Raises:
        DataError: If an image cannot be read, or the cache cannot be written.
    """
    return _load(_Work(part, image_files, workers, progress))[0]


def content(part: Part, image_files: ImageFiles) -> str:
    """Return a hash of the decoded images and labels of a part, independent of file times.

    It is computed once for each cached copy, in one pass.

    Raises:
        DataError: If an image cannot be read, or the cache cannot be written.
    """
    images, folder = _load(_Work(part, image_files))
    path = folder / CONTENT_FILE
    written = ""
    with contextlib.suppress(OSError):  # nobody has worked it out yet, or another process has made room
        written = path.read_text(encoding="ascii", errors="replace")
    mark = written.partition(" ")[0]
    if written == part_folder.linked(mark, folder):
        return mark
    mark = content_of(images)
    with writing(folder), _lock(folder):
        if folder.is_dir():  # another process may have made room
            part_folder.replace(path, part_folder.linked(mark, folder))
    return mark


def content_of(images: ImageSet) -> str:
    """Return the SHA-256 of images and labels, with their shape."""
    digest = hashlib.sha256(f"{images.x.shape}".encode())
    for first in range(0, len(images), HASHED):  # a mapped file would otherwise be read into memory at once
        digest.update(images.x[first : first + HASHED].tobytes())
    digest.update(images.y.tobytes())
    return digest.hexdigest()


def _load(work: _Work) -> tuple[ImageSet, Path]:
    """Return the images of a part and the folder of their kept copy."""
    part = work.part
    seen = looks.at(work.sources)
    mark = fingerprint(work.image_files, part.size, part.form, seen)
    folder = cache_dir() / f"{part.stem}-{mark[:16]}"
    meta = part_folder.read_meta(folder)
    if _is_of(meta, mark) and _may_be_taken(folder, meta, work, integrity.stamp(seen)):
        kept = part_folder.opened(folder, meta)
        if kept is not None:
            return kept, folder
    with writing(folder), _lock(folder):
        if not _is_good(folder, mark, work):
            _build(folder, mark, work, seen)
            _is_undamaged(folder, work)
        kept = part_folder.opened(folder, part_folder.read_meta(folder))
    if kept is None:
        raise DataError(f"{shown(folder)}: the cache was written but cannot be read back; is the disk full or failing?")
    return kept, folder


def _may_be_taken(folder: Path, meta: Mapping[str, Any], work: _Work, stamp: str) -> bool:
    """Return whether a part can be used without the lock: it was checked, or is valid and the cache is read-only."""
    if os.access(folder.parent, os.W_OK):
        return meta.get("stamp") == stamp and integrity.is_checked(folder / X_FILE)
    return integrity.verdict(meta, work.sources, work.workers) != "changed" and part_folder.damaged(folder, meta) == []


def _is_good(folder: Path, mark: str, work: _Work) -> bool:
    """Return whether a part has these sources and is undamaged, after possible repairs; the lock is held."""
    meta = part_folder.read_meta(folder)
    if not _is_of(meta, mark):
        if folder.is_dir():
            log.warning("%s: the cached images are damaged (%s); they are decoded again", shown(folder), META_FILE)
        return False
    verdict = integrity.verdict(meta, work.sources, work.workers)
    if verdict == "changed":
        log.warning(
            "%s: files were replaced by others of the same sizes and times of writing; they are decoded again",
            shown(_origin(work.image_files)),
        )
        return False
    if verdict == "renewed":
        log.warning(
            "%s: files have other inodes or times of change than when they were decoded, and the same content: the "
            "cached images stay (if each run says so, see docs/guide/datasets.md, Prepared once)",
            shown(_origin(work.image_files)),
        )
        stamp = integrity.stamp(looks.at(work.sources))
        with contextlib.suppress(OSError):  # on a full disk the next process checks again
            part_folder.replace(folder / META_FILE, json.dumps(meta | {"stamp": stamp}))
    return integrity.is_checked(folder / X_FILE) or _is_undamaged(folder, work)


def _is_undamaged(folder: Path, work: _Work) -> bool:
    """Return whether a part has its checksums, after damaged blocks were decoded again."""
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
            shown(folder),
            len(damaged),
            len(meta["blocks"]),
            len(index),
        )
        part_folder.mend(folder / X_FILE, work.decoded(index), index)
        if part_folder.damaged(folder, meta):  # decoding gives other pixels now, with another version of Pillow
            return False
    integrity.note_checked(folder / X_FILE)
    return True


def fingerprint(image_files: ImageFiles, size: int, form: Form = PLAIN, seen: Entries | None = None) -> str:
    """Return a hash of everything that decides the content of a part: files, labels, size and form.

    Args:
        image_files: The images.
        size: Their height and width in the part, in pixels.
        form: How they become squares.
        seen: The file system's entries of their files, if known already.

    Raises:
        DataError: If a file is not there.
    """
    other = "" if form == PLAIN else f" {form.resize} {form.window}"
    other += "" if form.exif == PLAIN.exif else f" exif {form.exif}"
    sources = sources_of(image_files)
    stats = looks.at(sources) if seen is None else seen
    digest = hashlib.sha256(f"{FORMAT} {size}{other} {len(sources)}\n".encode())
    digest.update(_encoded("\0".join(sources)))
    digest.update(np.ascontiguousarray(stats[:, [looks.SIZE, looks.WRITTEN]]).data)
    if isinstance(image_files, Listing):
        if not isinstance(image_files.items, Files):
            digest.update(_encoded("".join(f"{item.name} {item.offset} {item.length}\n" for item in image_files.items)))
        digest.update(image_files.labels.tobytes())
    elif image_files.mark:
        digest.update(_encoded(f"{image_files.mark}\n"))
    return digest.hexdigest()


def _encoded(text: str) -> bytes:
    """Return a text with file names as bytes; a name may contain bytes that are not UTF-8."""
    return text.encode(errors="surrogateescape")


def sources_of(image_files: ImageFiles) -> tuple[str, ...]:
    """Return the source files of images, each once."""
    return tuple(map(str, image_files.files)) if isinstance(image_files, Arrays) else image_files.sources


def _build(folder: Path, mark: str, work: _Work, before: Entries) -> None:
    """Write a part next to its place and rename it; remove outdated parts and those of killed builds.

    Args:
        folder: The part's folder.
        mark: Its fingerprint.
        work: How it is made.
        before: The entries of its files, from which its fingerprint is.
    """
    building.remove_abandoned(folder.parent, BUILT)
    part, sources, origin = work.part, work.sources, _origin(work.image_files)
    states = _states(sources, before)
    with building.folder(folder.parent, part.stem) as temporary:
        for name in (X_FILE, Y_FILE, META_FILE):
            private_files.make(temporary / name)
        x, y, facts = _fill(temporary / X_FILE, work)
        np.save(temporary / Y_FILE, y)
        meta = {"format": FORMAT, "fingerprint": mark, "size": part.size, "origin": origin, "states": states}
        meta |= integrity.seal(sources, before, work.workers, facts.digests if facts else None)
        meta |= part_folder.checksums(temporary / X_FILE, x, y)
        if facts is not None:
            part_folder.write_note(temporary, HEADERS, _counted(facts.headers), meta)
        part_folder.write_synced(temporary / META_FILE, json.dumps(meta))
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one
        temporary.rename(folder)
    _make_room(folder, part.stem, origin, states)


#: Of source files, then of their folders: a hash of their paths, and one of their states.
States = list[list[str]]


def _states(sources: Sequence[str], seen: Entries) -> States:
    """Return how the source files of a part are, in any order, and the folders that they are in."""
    order = sorted(range(len(sources)), key=sources.__getitem__)
    folders = sorted({str(Path(file).parent) for file in sources})
    times = (unchanged.times([Path(folder)]) for folder in folders)
    return [
        [_hash("\0".join(sources[place] for place in order)), integrity.state(seen[order])],
        [_hash("\0".join(folders)), _hash(str([known and known[0][1] for known in times]))],
    ]


def _hash(text: str) -> str:
    return hashlib.sha256(_encoded(text)).hexdigest()


def _make_room(new: Path, stem: str, origin: str, states: States) -> None:
    """Delete parts of the same images whose files or folders have changed since, and of others all but the last used.

    A part of other files in the same folders may be of another split, which a run uses at this moment: it stays. A
    part that another process is working on stays too; who has one mapped keeps it.
    """
    others = []
    for old in new.parent.glob(f"{stem}-*"):
        meta = part_folder.read_meta(old)
        if old == new or meta.get("origin") != origin:
            continue
        if _is_outdated(meta.get("states"), states):
            _remove(old)
        else:
            others.append(old)
    for old in sorted(others, key=_last_used, reverse=True)[MOST_PARTS - 1 :]:
        _remove(old)


def _is_outdated(then: Any, now: States) -> bool:
    """Return whether the same files, or all entries of the same folders, were in another state; or nobody knows."""
    if not isinstance(then, list) or len(then) != len(now):
        return True
    return any(old[:1] == new[:1] and old != new for old, new in zip(then, now, strict=True))


def _last_used(folder: Path) -> float:
    """Return when a part was made or last checked, in seconds; 0 if it is gone."""
    times = unchanged.times([folder / META_FILE]) or (), unchanged.times([folder / integrity.NOTE_FILE]) or ()
    return max((time for known in times for _, time in known), default=0)


def _remove(folder: Path) -> None:
    """Delete a part, unless another process holds its lock or this user may not."""
    with contextlib.suppress(OSError), private_files.tried(lock_of(folder)) as alone:
        if alone:
            shutil.rmtree(folder, ignore_errors=True)


def _counted(headers: Sequence[Header]) -> list[list[Any]]:
    """Return how many images have each header: width, height, mode, orientation and number."""
    return [[*header.size, header.mode, header.orientation, number] for header, number in Counter(headers).items()]


def headers(images: ImageSet) -> Counter[Header] | None:
    """Return how many images have each header, as it was when they were decoded; None if that is not known."""
    kept = None if images.kept_in is None else part_folder.note(images.kept_in, HEADERS)
    if kept is None:
        return None
    return Counter({Header((width, height), mode, turn): number for width, height, mode, turn, number in kept})


def _fill(path: Path, work: _Work) -> tuple[NDArray[np.uint8], NDArray[np.int64], FileFacts | None]:
    """Write the images of a part; return them with their labels, and what was found in their files if they have any."""
    part, image_files = work.part, work.image_files
    if isinstance(image_files, Listing):
        shape = (len(image_files), part.size, part.size, 3)
        out = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
        _reserve(path, out.nbytes)
        facts = decode_into(image_files, out, part.form, workers=work.workers, progress=work.progress)
        out.flush()
        return out, image_files.labels, facts
    images = image_files.read()
    resized = files.resize(images.x, part.size, part.form.resize)
    np.save(path, resized)
    work.progress(len(images))
    return resized, images.y, None


def _reserve(path: Path, size: int) -> None:
    """Write zeros to the last ``size`` bytes, as a mapped page without room on the disk kills the process."""
    zeros = bytes(1 << 20)
    with path.open("r+b") as file:
        file.seek(-size, os.SEEK_END)
        for first in range(0, size, len(zeros)):
            file.write(zeros[: size - first])


def _is_of(meta: Mapping[str, Any], mark: str) -> bool:
    return bool(meta.get("format") == FORMAT and meta.get("fingerprint") == mark)


def _origin(image_files: ImageFiles) -> str:
    """Return the common folder of all source files."""
    folders = {file[: file.rfind("/") + 1] for file in sources_of(image_files)}
    return os.path.commonpath([str(Path(folder).absolute()) for folder in folders])


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Let one process at a time build a part; the others wait for it."""
    private_files.make_folder(folder.parent)
    with private_files.locked(lock_of(folder)):
        yield


def lock_of(folder: Path) -> Path:
    """Return the file of the lock of a part."""
    return folder.parent / f".{folder.name}.lock"


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a full disk or a missing right into an error with the folder and a remedy."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write the image cache to {shown(folder.parent)} ({error.strerror or error}); "
            f"set {CACHE_DIR} to a folder with room"
        ) from None
