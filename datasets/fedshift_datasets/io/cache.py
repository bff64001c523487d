"""Caches decoded images: one memory-mapped uint8 array per domain and split, shared by all processes.

A part is a file (:mod:`fedshift_datasets.io.kept`) that appears at once, complete. Its name carries the fingerprint of
the source files (names, sizes, times of writing) and of the images' size and form, so that a changed source means
another part. It also says what else must agree (:mod:`fedshift_datasets.io.looks`): inodes, times of change and
content of the sources. A part with other sources, or a damaged one, is decoded again as a whole, and a line says so.
"""

import contextlib
import hashlib
import logging
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_datasets.arrays import Reals
from fedshift_datasets.base import PLAIN, Form, ImageSet
from fedshift_datasets.io import kept, looks, resize
from fedshift_datasets.io.decode import Progress, decode_into, no_progress
from fedshift_datasets.io.kept import CACHE_DIR as CACHE_DIR
from fedshift_datasets.io.kept import cache_dir as cache_dir
from fedshift_datasets.io.kept import writing as writing
from fedshift_datasets.io.looks import Entries
from fedshift_datasets.io.pictures import Header
from fedshift_datasets.listing import IGNORED, Files, ImageFiles, Listing, main_class

FORMAT = 5  # changes if the same files would be decoded to other pixels or be refused, or have another fingerprint
#: Files of the cache folder with names of image files or patients (fedshift_datasets.io: kept_sites, corrupt_files,
#: patients); those in JSON are of earlier versions.
LISTS = tuple(f"{of}-*.{suffix}" for of in ("site", "broken", "patients") for suffix in ("list", "json"))
HEADERS = "headers"  # note on the images of a part: what their files say of them
SPACING = "spacing"  # note: ImageSet.spacing, as rows with the number of images that have each in a row; 0 is unknown
#: Parts of the same images that are kept at most, of other splits, orders of classes or broken images left out.
MOST_PARTS = 8

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
    work = _Work(part, image_files, workers, progress)
    seen = looks.at(work.image_files.sources)
    mark = fingerprint(work.image_files, work.part.size, work.part.form, seen)
    path = cache_dir() / f"{work.part.stem}-{mark[:16]}"
    if not os.access(path.parent, os.W_OK) and (images := _opened(path, mark, work, seen)) is not None:
        return images
    with writing(path):
        if (images := _opened(path, mark, work, seen)) is None:
            _build(path, mark, work, seen)
            images = _images(kept.read(path), mark)
    if images is None:
        raise DataError(f"{shown(path)}: the cache was written but cannot be read back; is the disk full or failing?")
    return images


def content(part: Part, image_files: ImageFiles) -> str:
    """Return a hash of the decoded images and labels of a part, independent of file times.

    Raises:
        DataError: If an image cannot be read, or the cache cannot be written.
    """
    images = load(part, image_files)
    assert images.kept_in is not None
    return str(images.kept_in.chunks[0].about["digest"])


def _opened(path: Path, mark: str, work: _Work, seen: Entries) -> ImageSet | None:
    """Return the images of a kept part; None if there is none, it is damaged, or its files have changed."""
    part = kept.read(path)
    images = _images(part, mark)
    if images is None:
        if part.size:
            log.warning("%s: the cached images are damaged or cut off; they are decoded again", shown(path))
        return None
    if part.about["stamp"] == looks.stamp(seen):
        return images
    verdict = looks.verdict(part.about, work.image_files.sources, work.workers)
    if verdict == "changed":
        log.warning(
            "%s: files were replaced by others of the same sizes and times of writing; they are decoded again",
            shown(_origin(work.image_files)),
        )
        return None
    if verdict == "renewed" and os.access(path.parent, os.W_OK):
        log.warning(
            "%s: files have other inodes or times of change than when they were decoded, and the same content: the "
            "cached images stay (if each run says so, see docs/guide/datasets.md, Prepared once)",
            shown(_origin(work.image_files)),
        )
        stamp = looks.stamp(looks.at(work.image_files.sources))
        with contextlib.suppress(OSError), kept.appending(path) as file:  # on a full disk the next process checks again
            kept.write(file, {"stamp": stamp})
    return images


def _images(part: kept.Kept, mark: str) -> ImageSet | None:
    """Return the images of a part; None if it is not one of this fingerprint, or damaged."""
    if part.about.get("fingerprint") != mark:
        return None
    chunk = part.chunks[0]
    shape = tuple(chunk.about["shape"])
    # Copy on write: a process that writes does not harm the others, and torch gets writable memory.
    x = np.memmap(part.path, np.uint8, "c", chunk.start, shape)
    of_labels = shape[0] * np.dtype(np.int64).itemsize
    y = np.frombuffer(part.content(chunk, chunk.length - of_labels), np.int64)
    if chunk.length == x.nbytes + of_labels:
        return ImageSet(x, y, kept_in=part)
    masks = np.memmap(part.path, np.uint8, "c", chunk.start + x.nbytes, shape[:-1])
    return ImageSet(x, y, kept_in=part, masks=masks, spacing=_from_rows(part.about.get(SPACING, ())))


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
    sources = image_files.sources
    stats = looks.at(sources) if seen is None else seen
    digest = hashlib.sha256(f"{FORMAT} {size}{other} {len(sources)}\n".encode())
    digest.update(_encoded("\0".join(sources)))
    digest.update(np.ascontiguousarray(stats[:, [looks.SIZE, looks.WRITTEN]]).data)
    if isinstance(image_files, Listing):
        if not isinstance(image_files.items, Files):
            digest.update(_encoded("".join(f"{item.name} {item.offset} {item.length}\n" for item in image_files.items)))
        digest.update(image_files.labels.tobytes())
        if image_files.masks is not None:  # in the order of their images, each of which may lack one
            digest.update(_encoded("\0".join((f"masks, spacing {image_files.classes}", *image_files.masks))))
    elif image_files.mark:
        digest.update(_encoded(f"{image_files.mark}\n"))
    return digest.hexdigest()


def _encoded(text: str) -> bytes:
    """Return a text with file names as bytes; a name may contain bytes that are not UTF-8."""
    return text.encode(errors="surrogateescape")


def _build(path: Path, mark: str, work: _Work, before: Entries) -> None:
    """Write a part; remove outdated parts and those of killed builds.

    Args:
        path: The part's file.
        mark: Its fingerprint.
        work: How it is made.
        before: The entries of its files, from which its fingerprint is.
    """
    kept.remove_abandoned()
    kept.remove_earlier(path.parent, work.part.stem)
    image_files = work.image_files
    sources = image_files.sources
    changed = _changed(sources, before)
    made = max(time.time_ns(), changed)  # the clock of a network disk may be another one
    origin = _origin(image_files)
    about: dict[str, Any] = {"fingerprint": mark, "origin": origin, "made": made}
    with kept.building(path) as file:
        if isinstance(image_files, Listing):
            shape = (len(image_files), work.part.size, work.part.size, 3)
            outlined = image_files.masks is not None
            with kept.mapped(file, shape, image_files.labels, masks=outlined) as (start, masks, labels):
                found, digests = decode_into(
                    image_files,
                    file.name,
                    start,
                    work.part.size,
                    work.part.form,
                    workers=work.workers,
                    progress=work.progress,
                )
                if masks is not None:
                    labels[:] = main_class(masks, IGNORED)
                    scales = [resize.scale(*each.size, shape[1], work.part.form.resize) for each in found]
                    apart = np.array([each.spacing or (np.nan, np.nan) for each in found]) * scales
                    about |= {SPACING: _in_rows(apart)}
            counts = Counter((*each.size, each.mode, each.orientation) for each in found)
            about |= {HEADERS: [[*header, number] for header, number in counts.items()]}
            about |= looks.seal(sources, before, work.workers, digests)
        else:
            images = resize.resized(image_files.read(), work.part.size, work.part.form.resize)
            kept.write(file, {}, images.x, *(() if images.masks is None else [images.masks]), images.y, align=64)
            about |= {SPACING: _in_rows(images.spacing)} | looks.seal(sources, before, work.workers)
            work.progress(len(images))
        kept.write(file, about)
    _make_room(path, work.part.stem, origin, changed)


def _changed(sources: Sequence[str], seen: Entries) -> int:
    """Return when source files, or the folders that they are in, last changed, in nanoseconds."""
    folders = tuple({os.path.dirname(file) for file in sources})  # noqa: PTH120 - of very many
    return int(max(seen[:, looks.CHANGED].max(), looks.some(folders)[:, looks.CHANGED].max()))


def _make_room(new: Path, stem: str, origin: str, changed: int) -> None:
    """Delete parts of the same images that were made before a file or folder changed, and all but the last used.

    A part of other files in the same folders may be of another split, which a run uses at this moment: it stays. A
    part that another process is working on stays too; who has one mapped keeps it.
    """
    parts = {path: kept.read(path, check=False).about for path in new.parent.glob(f"{stem}-*") if path != new}
    others = [path for path, about in parts.items() if about.get("origin") == origin]
    fresh = sorted((path for path in others if parts[path]["made"] > changed), key=last_used, reverse=True)
    for old in set(others) - set(fresh[: MOST_PARTS - 1]):
        with contextlib.suppress(OSError):
            kept.removed(old)


def last_used(path: Path) -> float:
    """Return when a file of the cache was last used, in seconds; 0 if it is gone."""
    for place in (kept.lock_of(path), path):
        with contextlib.suppress(OSError):
            return place.stat().st_mtime
    return 0


def _in_rows(spacing: Reals | None) -> list[list[float]]:
    """Return spacing (N, 2) as a note; empty if none is known."""
    if spacing is None or np.isnan(spacing).all():
        return []
    return [[*pair, len([*same])] for pair, same in groupby(np.nan_to_num(spacing).tolist())]


def _from_rows(rows: Sequence[Sequence[float]]) -> Reals | None:
    """Return spacing (N, 2) of a note; None if none is known."""
    if not rows:
        return None
    down, across, number = np.array(rows).T
    pairs = np.stack([down, across], 1).repeat(number.astype(np.int64), axis=0)
    return np.where(pairs > 0, pairs, np.nan)


def headers(images: ImageSet) -> Counter[Header] | None:
    """Return how many images have each header, as it was when they were decoded; None if that is not known."""
    found = None if images.kept_in is None else images.kept_in.note(HEADERS)
    if found is None:
        return None
    return Counter({Header((w, h), mode, orientation=turn): number for w, h, mode, turn, number in found})


def _origin(image_files: ImageFiles) -> str:
    """Return the common folder of all source files."""
    folders = {file[: file.rfind("/") + 1] for file in image_files.sources}
    return os.path.commonpath([str(Path(folder).absolute()) for folder in folders])
