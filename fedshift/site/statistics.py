"""Statistics of a node's images, and how they differ from those of its last report."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel

from fedshift.export.predicting import Metrics
from fedshift_core.limits import BINS
from fedshift_datasets.base import ImageSet
from fedshift_datasets.quality import pixel_statistics


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
        """Measure images."""
        pixels = pixel_statistics.of(images.x, BINS) if len(images) else None
        mean, std = (np.zeros(3), np.zeros(3)) if pixels is None else (pixels.mean, np.sqrt(pixels.variance))
        counts = np.bincount(images.y, minlength=classes).tolist()
        marks = [mark.tobytes().hex() for mark in images.marks]
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
    version: Literal[1] = 1

    @property
    def metrics(self) -> Metrics | None:
        """The figures of the test images; None without any."""
        matrix = np.array(self.confusion, np.int64)
        return Metrics(matrix) if matrix.any() else None


def total_variation(counts: Sequence[int], others: Sequence[int]) -> float | None:
    r"""Return :math:`\frac12\sum_k|p_k-q_k|` of two class mixes; None if either has no images."""
    p, q = np.array(counts, np.float64), np.array(others, np.float64)
    if not p.sum() or not q.sum():
        return None
    return float(np.abs(p / p.sum() - q / q.sum()).sum() / 2)
