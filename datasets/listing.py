"""The images of a domain before they are decoded: image files, pieces of archives, labels."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ImageSet:
    """Labelled images of one domain and split.

    Attributes:
        x: Images, shape (N, H, W, 3), uint8, RGB.
        y: Labels, shape (N,), int64, in ``0 .. classes - 1``.
    """

    x: NDArray[np.uint8]
    y: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        """Say how many images there are, and show none: this ends up in messages and logs."""
        return f"ImageSet({len(self)} images)"

    def select(self, index: NDArray[np.int64]) -> "ImageSet":
        """Return the images at ``index`` (shape (n,)), in that order."""
        return ImageSet(self.x[index], self.y[index])


@dataclass(frozen=True)
class Item:
    """One encoded image: a file, or a piece of an uncompressed tar.

    Attributes:
        path: The image file, or the tar.
        name: Its name in errors: its path, or its name inside the tar.
        offset: Where the image begins in ``path``, in bytes.
        length: Its length in bytes; -1 for the whole file.
    """

    path: Path
    name: str
    offset: int = 0
    length: int = -1


@dataclass(frozen=True)
class Listing:
    """All images of one domain (or of one split of it), in a fixed order.

    Attributes:
        items: The encoded images.
        labels: Their labels, shape (N,), int64.
    """

    items: tuple[Item, ...]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.items)

    def select(self, index: NDArray[np.int64]) -> "Listing":
        """Return the images at ``index`` (shape (n,)), in that order."""
        return Listing(tuple(self.items[i] for i in index), self.labels[index])


@dataclass(frozen=True)
class Arrays:
    """Images in arrays (npz, idx, mat, pickled batches), not in encoded files.

    Attributes:
        files: The files that decide the content.
        read: Reads them at their own size; the caller resizes them.
        mark: What decides the labels besides the files' bytes, such as the run's classes; otherwise empty.
    """

    files: tuple[Path, ...]
    read: Callable[[], ImageSet]
    mark: str = ""


ImageFiles = Listing | Arrays
