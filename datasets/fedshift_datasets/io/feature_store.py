"""Keeps numbers that are computed once for each image: rows in a file that grows, found by the image's mark.

A store is a file (:mod:`fedshift_datasets.io.kept`) next to the cached images. Its first chunk says what the numbers
are; each further one has rows of fixed shape and type, then the marks of their images. All chunks begin at multiples of
a row's bytes, so that one map of the file has all rows. Rows are only ever added, by one process at a time.
"""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedshift_core.disk_use import RESERVE
from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_core.plural import plural
from fedshift_datasets.arrays import Indices, Numbers, Pixels
from fedshift_datasets.io import kept
from fedshift_datasets.listing import MARK

FOLDER = "features"  # within that of the decoded images
FORMAT = 2
FLUSHED = 256  # rows that are written at a time; a killed process loses as many at most

Compute = Callable[[Indices], Numbers]  # from places of images (n,) to their rows (n, ...)
Done = Callable[[int, int], None]  # called with the rows that are done and all rows


@dataclass(frozen=True)
class Kind:
    """What the rows of a store are.

    Attributes:
        name: The beginning of its file's name.
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
    return kept.cache_dir() / FOLDER


class FeatureStore:
    """The rows of one kind that this machine has.

    Attributes:
        kind: What they are.
        path: Where they are.
    """

    def __init__(self, kind: Kind, most_bytes: int | None = None) -> None:
        """Open a store, or make an empty one at the first row.

        Args:
            kind: What the rows are.
            most_bytes: Largest size of all stores together; None for any.
        """
        self.kind = kind
        self.path = root() / f"{kind.name}-{kind.digest[:16]}"
        self._most = most_bytes
        self._places: dict[bytes, int] = {}
        self._rows: Numbers | None = None
        self._seen: list[int] | None = None  # the state of the file when it was last read

    def __len__(self) -> int:
        return len(self._places)

    def places(self, marks: Pixels, compute: Compute, done: Done | None = None) -> Indices:
        """Return where the rows of images are, after those that are missing or damaged have been computed.

        Args:
            marks: Of the images, (N, MARK).
            compute: Returns the rows of images, given their places in ``marks``.
            done: Called with the progress of the work.

        Raises:
            DataError: If the store cannot be written or would become too large.
        """
        keys = _keys(marks.tobytes())
        if not all(key in self._places for key in keys):
            self._read()
        if not all(key in self._places for key in keys):
            self._fill(keys, marks, compute, done)
        return np.fromiter((self._places[key] for key in keys), np.int64, len(keys))

    def missing(self, marks: Pixels) -> int:
        """Return how many different images have no row yet."""
        self._read()
        return len(set(_keys(marks.tobytes())) - self._places.keys())

    @property
    def rows(self) -> Numbers:
        """All rows (number, *shape), mapped into memory; between chunks some are none."""
        assert self._rows is not None
        return self._rows

    def _read(self) -> None:
        """Find the rows, if the file has changed, and map them; without it there are none."""
        state = kept.identity_of(self.path)
        if state is not None and state == self._seen:
            return
        self._seen, self._places, self._rows = state, {}, None
        file, size = kept.read(self.path), self.kind.row_bytes
        for chunk in file.chunks[1:]:
            first, number = chunk.start // size, chunk.about["shape"][0]
            self._places |= {key: first + at for at, key in enumerate(_keys(file.content(chunk, number * size)))}
        if self._places:
            # Copy on write: torch gets writable memory, and nothing that a process does with it reaches the file.
            shape = (file.end // size, *self.kind.shape)
            self._rows = np.memmap(self.path, np.dtype(self.kind.dtype), "c", shape=shape)

    def _fill(self, keys: list[bytes], marks: Pixels, compute: Compute, done: Done | None) -> None:
        """Compute and add the rows that are missing; other processes wait for it."""
        with kept.writing(self.path):
            self._read()  # another process may have been here
            wanted = {key: place for place, key in reversed(list(enumerate(keys))) if key not in self._places}
            absent = sorted(wanted.values())  # of an image that is there twice the first
            if absent:
                self.check_room(len(absent))
            if not self._places:
                kept.remove_earlier(self.path.parent, self.kind.name)
            with kept.appending(self.path) as file:
                if not file.tell():
                    kept.write(file, self._about())
                for start in range(0, len(absent), FLUSHED):
                    chunk = np.array(absent[start : start + FLUSHED], np.int64)
                    values = self._of_kind(compute(chunk))
                    kept.write(file, {}, values, marks[chunk], align=self.kind.row_bytes)
                    file.flush()
                    if done is not None:
                        done(start + len(chunk), len(absent))
        self._read()

    def _about(self) -> dict[str, Any]:
        kind = self.kind
        made = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        return {"name": kind.name, "of": dict(kind.about), "row": kind.shape, "dtype": kind.dtype, "made": made}

    def _of_kind(self, values: Numbers) -> Numbers:
        values = np.ascontiguousarray(values, np.dtype(self.kind.dtype))
        if values.shape[1:] != self.kind.shape:
            raise RuntimeError(f"rows have the shape {values.shape[1:]}, expected {self.kind.shape}")
        return values

    def check_room(self, number: int) -> None:
        """Refuse rows for which there is no room.

        Raises:
            DataError: With the remedy.
        """
        wanted = number * (self.kind.row_bytes + MARK)
        with kept.placing(self.path):
            free = shutil.disk_usage(root()).free - RESERVE
        held = bytes_held()
        needs = f"features of {plural(number, 'image needs', 'images need')} {_megabytes(wanted)}, {shown(root())}"
        if wanted > free:
            raise DataError(
                f"{needs} has room for {_megabytes(max(free, 0))}; delete some with `fedshift cache delete`, or set "
                f"{kept.CACHE_DIR} to a folder with room"
            )
        if self._most is not None and held + wanted > self._most:
            raise DataError(
                f"{needs} holds {_megabytes(held)} and may hold {_megabytes(self._most)} (model.precompute_gb); delete "
                "some with `fedshift cache delete`, or raise model.precompute_gb"
            )


def stores() -> list[Path]:
    """Return the files of all stores of this machine."""
    return sorted(path for path in root().glob("[!.]*") if path.is_file() and not path.is_symlink())


def bytes_held() -> int:
    """Return the size of all features of this machine."""
    return sum(kept.read(path, check=False).size for path in stores())


def _keys(marks: bytes) -> list[bytes]:
    """Return marks (N, MARK) as bytes, MARK each."""
    return [marks[start : start + MARK] for start in range(0, len(marks), MARK)]


def _megabytes(number: int) -> str:
    return f"{number / 1e6:,.1f} MB"
