"""Keeps numbers that are computed once for each image: rows in a file that grows, found by the image's mark.

A store is a folder next to the cached images. ``rows.bin`` has one row of fixed shape and type for each image,
``index.bin`` its mark and a checksum, ``meta.json`` what the numbers are. Rows are only ever added, by one process at a
time, and the index is written after the rows: what a killed process left is cut off. A row is checked when a process
first reads it; a damaged one is computed again. Only its owner can read a store, whatever the umask.
"""

import contextlib
import hashlib
import json
import logging
import math
import os
import shutil
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_core import private_files
from fedshift_core.atomic_io import write_atomically
from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_core.plural import plural
from fedshift_datasets.io import cache
from fedshift_datasets.listing import MARK

FOLDER = "features"  # within that of the decoded images
FORMAT = 1
ROWS_FILE, INDEX_FILE, META_FILE = "rows.bin", "index.bin", "meta.json"
RECORD = MARK + 4  # bytes of an image's entry in the index: its mark and the CRC-32 of its row
KEPT_FREE = 1 << 28  # bytes of the disk that are left free
FLUSHED = 256  # rows that are written at a time; a killed process loses as many at most

Compute = Callable[[NDArray[np.int64]], NDArray[Any]]  # from places of images (n,) to their rows (n, ...)
Done = Callable[[int, int], None]  # called with the rows that are done and all rows
log = logging.getLogger("fedshift")


@dataclass(frozen=True)
class Kind:
    """What the rows of a store are.

    Attributes:
        name: The beginning of its folder's name.
        about: All that decides the numbers, besides the images.
        shape: Shape of a row.
        dtype: NumPy's name of its type.
    """

    name: str
    about: Mapping[str, Any]
    shape: tuple[int, ...]
    dtype: str

    @property
    def digest(self) -> str:
        """A hash of all that decides the numbers."""
        content = json.dumps([FORMAT, self.about, self.shape, self.dtype], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def root() -> Path:
    """Return the folder of all stores."""
    return cache.cache_dir() / FOLDER


class FeatureStore:
    """The rows of one kind that this machine has.

    Attributes:
        kind: What they are.
        folder: Where they are.
    """

    def __init__(self, kind: Kind, most_bytes: int | None = None) -> None:
        """Open a store, or make an empty one at the first row.

        Args:
            kind: What the rows are.
            most_bytes: Largest size of all stores together; None for any.
        """
        self.kind = kind
        self.folder = root() / f"{kind.name}-{kind.digest[:16]}"
        self._most = most_bytes
        self._places: dict[bytes, int] = {}
        self._sums = np.zeros(0, np.uint32)
        self._checked = np.zeros(0, bool)
        self._rows: NDArray[Any] | None = None
        self._seen: tuple[int, int, int] | None = None  # the state of the index when it was last read

    def __len__(self) -> int:
        return len(self._sums)

    def places(self, marks: NDArray[np.uint8], compute: Compute, done: Done | None = None) -> NDArray[np.int64]:
        """Return where the rows of images are, after those that are missing or damaged have been computed.

        Args:
            marks: Of the images, (N, MARK).
            compute: Returns the rows of images, given their places in ``marks``.
            done: Called with the progress of the work.

        Raises:
            DataError: If the store cannot be written or would become too large.
        """
        keys = _keys(marks)
        if not all(key in self._places for key in keys):
            self._read()
        if not all(key in self._places for key in keys):
            self._fill(keys, compute, done)
        places = np.fromiter((self._places[key] for key in keys), np.int64, len(keys))
        damaged = self._damaged(places)
        if len(damaged):
            self._mend(damaged, keys, places, compute)
        return places

    def missing(self, marks: NDArray[np.uint8]) -> int:
        """Return how many different images have no row yet."""
        self._read()
        return len(set(_keys(marks)) - self._places.keys())

    @property
    def rows(self) -> NDArray[Any]:
        """All rows (number of rows, *shape), mapped into memory."""
        assert self._rows is not None
        return self._rows

    def _read(self) -> None:
        """Read the index, if it has changed, as far as it is complete, and map the rows; without it there are none."""
        state = self._state()
        if state is not None and state == self._seen:
            return
        self._seen = state
        index, number = self._index()
        if number == 0:
            self._places, self._sums, self._checked, self._rows = {}, self._sums[:0], self._checked[:0], None
            return
        records = np.frombuffer(index, np.uint8, number * RECORD).reshape(number, RECORD)
        self._places = {key: place for place, key in enumerate(_keys(records[:, :MARK]))}
        self._sums = np.ascontiguousarray(records[:, MARK:]).view(np.uint32)[:, 0]
        self._checked = np.zeros(number, bool)
        # Copy on write: torch gets writable memory, and nothing that a process does with it reaches the file.
        self._rows = np.memmap(
            self.folder / ROWS_FILE, np.dtype(self.kind.dtype), "c", shape=(number, *self.kind.shape)
        )

    def _state(self) -> tuple[int, int, int] | None:
        """Return what changes whenever somebody writes the index; None if there is none."""
        try:
            about = (self.folder / INDEX_FILE).stat()
        except OSError:
            return None
        return about.st_ino, about.st_size, about.st_mtime_ns

    def _index(self) -> tuple[bytes, int]:
        """Return the index, and of how many rows it and the rows' file are complete."""
        meta = read_meta(self.folder)
        if meta is None or meta.get("digest") != self.kind.digest:
            return b"", 0
        try:
            index = (self.folder / INDEX_FILE).read_bytes()
            held = (self.folder / ROWS_FILE).stat().st_size // self.kind.row_bytes
            os.utime(self.folder / META_FILE)  # when it was last used
        except OSError:
            return b"", 0
        return index, min(len(index) // RECORD, held)

    def _damaged(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which of some rows have a wrong checksum; each is checked once by a process."""
        unchecked = np.unique(places[~self._checked[places]])
        wrong = [place for place in unchecked if zlib.crc32(self.rows[place].tobytes()) != self._sums[place]]
        self._checked[unchecked] = True
        return np.array(wrong, np.int64)

    def _mend(self, damaged: NDArray[np.int64], keys: list[bytes], places: NDArray[np.int64], compute: Compute) -> None:
        rows_are = plural(len(damaged), "row is", "rows are")
        log.warning("%s: %s damaged and computed again", shown(self.folder), rows_are)
        first = {int(place): at for at, place in reversed(list(enumerate(places)))}
        values = self._of_kind(compute(np.array([first[int(place)] for place in damaged], np.int64)))
        with self._writing() as (rows, index):
            for place, value in zip(damaged.tolist(), values, strict=True):
                rows.seek(place * self.kind.row_bytes)
                rows.write(value.tobytes())
                index.seek(place * RECORD)
                record = _record(keys[first[place]], value)
                index.write(record)
                self._sums[place] = int.from_bytes(record[MARK:], "little")
        self._rows = np.memmap(self.folder / ROWS_FILE, np.dtype(self.kind.dtype), "c", shape=self.rows.shape)

    def _fill(self, keys: list[bytes], compute: Compute, done: Done | None) -> None:
        """Compute and add the rows that are missing; other processes wait for it."""
        with self._writing() as (rows, index):
            self._read()  # another process may have been here
            wanted = {key: place for place, key in reversed(list(enumerate(keys))) if key not in self._places}
            absent = sorted(wanted.values())  # of an image that is there twice the first
            if absent:
                self.check_room(len(absent))
            number = len(self)
            rows.truncate(number * self.kind.row_bytes)
            index.truncate(number * RECORD)
            rows.seek(0, os.SEEK_END)
            index.seek(0, os.SEEK_END)
            for start in range(0, len(absent), FLUSHED):
                chunk = absent[start : start + FLUSHED]
                values = self._of_kind(compute(np.array(chunk, np.int64)))
                rows.write(values.tobytes())
                rows.flush()
                index.write(b"".join(_record(keys[at], value) for at, value in zip(chunk, values, strict=True)))
                index.flush()
                if done is not None:
                    done(start + len(chunk), len(absent))
        self._read()

    def _of_kind(self, values: NDArray[Any]) -> NDArray[Any]:
        values = np.ascontiguousarray(values, np.dtype(self.kind.dtype))
        if values.shape[1:] != self.kind.shape:
            raise RuntimeError(f"rows have the shape {values.shape[1:]}, expected {self.kind.shape}")
        return values

    def check_room(self, number: int) -> None:
        """Refuse rows for which there is no room.

        Raises:
            DataError: With the remedy.
        """
        wanted = number * (self.kind.row_bytes + RECORD)
        with cache.writing(self.folder):
            _make_root()
            free = shutil.disk_usage(root()).free - KEPT_FREE
        if wanted > free:
            raise DataError(
                f"features of {plural(number, 'image needs', 'images need')} {_megabytes(wanted)}, "
                f"{shown(self.folder.parent)} has room for "
                f"{_megabytes(max(free, 0))}; delete some with `fedshift cache delete`, or set {cache.CACHE_DIR} to a "
                "folder with room"
            )
        held = sum(entry.bytes for entry in kept())
        if self._most is not None and held + wanted > self._most:
            raise DataError(
                f"features of {plural(number, 'image needs', 'images need')} {_megabytes(wanted)}, "
                f"{shown(self.folder.parent)} holds "
                f"{_megabytes(held)} and may hold {_megabytes(self._most)} (model.precompute_gb); delete some with "
                "`fedshift cache delete`, or raise model.precompute_gb"
            )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[tuple[Any, Any]]:
        """Let this process alone write; yield the files of rows and of the index.

        Raises:
            DataError: If they cannot be written.
        """
        with cache.writing(self.folder):
            _make_root()
            private_files.make_folder(self.folder)
            with private_files.locked(self.folder / ".lock"):
                for name in (ROWS_FILE, INDEX_FILE):  # only now: `fedshift cache delete` may just have had the lock
                    private_files.make(self.folder / name)
                meta = read_meta(self.folder)
                if meta is None or meta.get("digest") != self.kind.digest:
                    for name in (ROWS_FILE, INDEX_FILE):
                        os.truncate(self.folder / name, 0)
                    write_meta(self.folder, self.kind)
                with (self.folder / ROWS_FILE).open("r+b") as rows, (self.folder / INDEX_FILE).open("r+b") as index:
                    yield rows, index


def _make_root() -> None:
    private_files.make_folder(cache.cache_dir())
    private_files.make_folder(root())


def read_meta(folder: Path) -> dict[str, Any] | None:
    """Return the content of a store's ``meta.json``; None if it is missing or damaged."""
    try:
        content = json.loads((folder / META_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def write_meta(folder: Path, kind: Kind) -> None:
    """Write what the rows of a store are.

    Raises:
        OSError: If it cannot be written.
    """
    content = {
        "format": FORMAT, "digest": kind.digest, "name": kind.name, "about": dict(kind.about), "shape": kind.shape,
        "dtype": kind.dtype, "made": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }  # fmt: skip
    write_atomically(folder / META_FILE, json.dumps(content, indent=2) + "\n")
    (folder / META_FILE).chmod(0o600)


@dataclass(frozen=True)
class Kept:
    """A store on the disk.

    Attributes:
        folder: Where it is.
        meta: What its rows are; None if that cannot be read.
        bytes: Its size.
        rows: Number of its rows.
        used: When it was last used, in seconds since 1970.
    """

    folder: Path
    meta: dict[str, Any] | None
    bytes: int
    rows: int
    used: float


def kept() -> list[Kept]:
    """Return all stores of this machine."""
    found = []
    for folder in sorted(path for path in root().glob("*") if path.is_dir()):
        with contextlib.suppress(FileNotFoundError):  # another process has deleted the folder
            found.append(_kept(folder))
    return found


def _kept(folder: Path) -> Kept:
    files: dict[str, os.stat_result] = {}
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process has deleted or renamed it
            if stat.S_ISREG((status := path.stat()).st_mode):
                files[path.name] = status
    used = files.get(META_FILE) or folder.stat()
    rows = files[INDEX_FILE].st_size // RECORD if INDEX_FILE in files else 0
    size = sum(status.st_size for status in files.values())
    return Kept(folder, read_meta(folder), size, rows, used.st_mtime)


def verify(entry: Kept) -> int | None:
    """Return the number of damaged rows of a store; None if it cannot be read at all."""
    meta = entry.meta
    try:
        assert meta is not None
        kind = Kind(str(meta["name"]), meta["about"], tuple(meta["shape"]), str(meta["dtype"]))
        index = (entry.folder / INDEX_FILE).read_bytes()
        damaged = 0
        with (entry.folder / ROWS_FILE).open("rb") as rows:
            for at in range(entry.rows):
                row = rows.read(kind.row_bytes)
                wanted = int.from_bytes(index[at * RECORD + MARK : (at + 1) * RECORD], "little")
                damaged += len(row) < kind.row_bytes or zlib.crc32(row) != wanted
    except (OSError, AssertionError, KeyError, TypeError, ValueError):
        return None
    return damaged


def _keys(marks: NDArray[np.uint8]) -> list[bytes]:
    """Return marks (N, MARK) as bytes, MARK each."""
    data = marks.tobytes()
    return [data[start : start + MARK] for start in range(0, len(data), MARK)]


def _record(key: bytes, row: NDArray[Any]) -> bytes:
    """Return the entry of a row in the index."""
    return key + zlib.crc32(row.tobytes()).to_bytes(RECORD - MARK, "little")


def _megabytes(number: int) -> str:
    return f"{number / 1e6:,.1f} MB"
