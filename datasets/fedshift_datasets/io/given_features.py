"""Features of images that a user computed with any encoder: one npz file, rows by the images' files.

| key | content |
|---|---|
| `images` (N,), text | paths below data-dir, with `/`; of images in npz files `<domain>/<split>/<place>`, from 0 |
| `features` (N, D), floats | a row for each |
| `classes` (C, D), floats, optional | embeddings of the classes' names, in the order of the labels |
"""

import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedshift_core.errors import ConfigError, DataError
from fedshift_core.limits import shown, some
from fedshift_core.plural import plural
from fedshift_datasets.arrays import Floats
from fedshift_datasets.io import looks
from fedshift_datasets.listing import ImageSet

KEY = "dataset.features"
_NAMED = 3


@dataclass(frozen=True)
class Given:
    """The content of a file.

    Attributes:
        sha256: Of the file.
        places: The row of each image, by its name.
        rows: The features (N, D), float32.
        classes: Embeddings of the classes (C, D), float32; None if it has none.
    """

    sha256: str
    places: dict[str, int]
    rows: Floats
    classes: Floats | None

    @property
    def width(self) -> int:
        """The width D of its features."""
        return int(self.rows.shape[1])

    def by_mark(self, parts: Iterable[tuple[Sequence[str], ImageSet]]) -> dict[bytes, int]:
        """Return the row of each image by its mark.

        Args:
            parts: Names and images, in one order.

        Raises:
            DataError: If an image has no row.
        """
        found: dict[bytes, int] = {}
        for names, images in parts:
            if lacking := [name for name in names if name not in self.places]:
                raise DataError(f"{KEY}: the file has no row for {some(lacking, _NAMED)}")
            for name, mark in zip(names, images.marks, strict=True):
                found.setdefault(mark.tobytes(), self.places[name])
        return found


@looks.remembered(2)
def read(path: Path) -> Given:
    """Return the content of a file, which is read again only if its size or its time changed.

    Raises:
        ConfigError: If it is not there.
        DataError: If it is none, or its arrays do not fit.
    """
    try:
        path.stat()
    except OSError as error:
        raise ConfigError(f"{KEY}: {shown(path)}: {error.strerror}") from None
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in ("images", "features", "classes") if key in file}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{KEY}: {shown(path)} cannot be read as npz ({str(error).partition(chr(10))[0]})") from None
    names, rows, classes = map(arrays.get, ("images", "features", "classes"))
    if names is None or rows is None or names.dtype.kind != "U" or rows.ndim != 2 or names.shape != rows.shape[:1]:
        found = ", ".join(f"{key} {array.dtype} {array.shape}" for key, array in arrays.items()) or "neither"
        raise DataError(f"{KEY}: {shown(path)} has {found}; expected images (N,), text, and features (N, D)")
    if classes is not None and (classes.ndim != 2 or classes.shape[1] != rows.shape[1]):
        raise DataError(f"{KEY}: {shown(path)}: classes {classes.shape}; expected (C, {rows.shape[1]})")
    for key, array in (("features", rows), ("classes", classes)):
        if array is not None and (array.dtype.kind != "f" or not np.isfinite(array).all()):
            raise DataError(f"{KEY}: {shown(path)}: {key} {array.dtype}; expected floats that are finite")
    places = {name: place for place, name in enumerate(names.tolist())}
    if len(places) < len(names):
        raise DataError(f"{KEY}: {shown(path)} names {plural(len(names) - len(places), 'image')} twice")
    of_classes = None if classes is None else classes.astype(np.float32)
    return Given(looks.contents([path]), places, rows.astype(np.float32), of_classes)
