"""Statistics of a node's images, and how they differ from those of its last report."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import BaseModel

from fedshift_datasets.base import ImageSet

VERSION: Literal[1] = 1  # of what a report keeps for the next one
MEASURED = 1024  # images that are measured at a time


class Images(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Statistics of one split.

    Attributes:
        counts: Images of each class, (C,).
        mean: By channel, of pixels from 0 to 1, (3,); zeros without images.
        std: Likewise.
        marks: A name of each image, which follows from its pixels.
    """

    counts: list[int]
    mean: list[float]
    std: list[float]
    marks: list[str]

    @classmethod
    def of(cls, images: ImageSet, classes: int) -> "Images":
        """Measure images, block by block."""
        total, squares, pixels = np.zeros(3), np.zeros(3), 0
        for first in range(0, len(images), MEASURED):
            block = images.x[first : first + MEASURED].reshape(-1, 3).astype(np.float64) / 255.0
            total += block.sum(axis=0)
            squares += np.square(block).sum(axis=0)
            pixels += len(block)
        mean = total / max(pixels, 1)
        std = np.sqrt(np.maximum(squares / max(pixels, 1) - np.square(mean), 0.0))
        marks = [mark.tobytes().hex() for mark in images.marks]
        counts = np.bincount(images.y, minlength=classes).tolist()
        return cls(counts=counts, mean=mean.tolist(), std=std.tolist(), marks=marks)


class Kept(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """What a report keeps for the next one.

    Attributes:
        time: When, in UTC.
        classes: Names of the classes.
        size: Height and width of the images in pixels.
        splits: Statistics by split.
        model: Which model scored the test images, in words.
        sha256: Of its weights.
        confusion: Test images by true (row) and predicted class; empty without test images.
    """

    time: str
    classes: list[str]
    size: int
    splits: dict[str, Images]
    model: str
    sha256: str
    confusion: list[list[int]] = []
    version: Literal[1] = VERSION

    @property
    def accuracy(self) -> float | None:
        """Top-1 accuracy on the test images in percent; None without any."""
        matrix = np.array(self.confusion, np.int64).reshape(len(self.confusion), -1)
        return 100 * float(np.trace(matrix)) / int(matrix.sum()) if matrix.size and matrix.sum() else None


@dataclass(frozen=True)
class Change:
    """How one split differs from the last time.

    Attributes:
        new: Images that were not there.
        gone: Images that are not there any more.
        mix: Total variation distance of the class mix, 0 to 1; None where either time had no images.
        mean: Change of each channel's mean, pixels from 0 to 1, (3,).
        std: Likewise of its standard deviation.
    """

    new: int
    gone: int
    mix: float | None
    mean: list[float]
    std: list[float]


def changes(now: Kept, before: Kept) -> dict[str, Change]:
    """Return the change of each split that both times have.

    Raises:
        ValueError: If the images were of other classes or another size, in words.
    """
    if now.classes != before.classes:
        raise ValueError("the classes were others")
    if now.size != before.size:
        raise ValueError(f"images were of {before.size} pixels, they are of {now.size} now")
    return {name: _change(images, before.splits[name]) for name, images in now.splits.items() if name in before.splits}


def _change(now: Images, before: Images) -> Change:
    first, second = Counter(before.marks), Counter(now.marks)
    mix = total_variation(now.counts, before.counts)
    mean = [after - then for after, then in zip(now.mean, before.mean, strict=True)]
    std = [after - then for after, then in zip(now.std, before.std, strict=True)]
    return Change((second - first).total(), (first - second).total(), mix, mean, std)


def total_variation(counts: Sequence[int], others: Sequence[int]) -> float | None:
    r"""Return :math:`\frac12\sum_k|p_k-q_k|` of two class mixes; None if either has no images."""
    p, q = np.array(counts, np.float64), np.array(others, np.float64)
    if not p.sum() or not q.sum():
        return None
    return float(np.abs(p / p.sum() - q / q.sum()).sum() / 2)
