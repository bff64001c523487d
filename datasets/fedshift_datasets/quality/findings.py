"""What is found out about the pixels of a part, kept with its images in the cache: each image is looked at once."""

import base64
import contextlib
from typing import Any

import numpy as np

from fedshift_core.errors import DataError
from fedshift_core.limits import BINS
from fedshift_datasets.arrays import Hashes
from fedshift_datasets.base import ImageSet
from fedshift_datasets.quality import duplicates, pixel_statistics
from fedshift_datasets.quality.duplicates import Sketches
from fedshift_datasets.quality.pixel_statistics import PixelStatistics

NOTE = "findings"
VERSION = 1  # another one if the same images would give other numbers


def of(images: ImageSet) -> tuple[PixelStatistics, Sketches]:
    """Return the statistics of images, at least one, and their sketches for comparison."""
    if kept := _kept(images):
        numbers = {name: np.array(value) for name, value in kept["pixels"].items()}
        pixels = PixelStatistics(**numbers | {"images": kept["pixels"]["images"]})
        return pixels, duplicates.sketches(images.x, _decoded(kept["hashes"]))
    pixels, sketches = pixel_statistics.of(images.x, BINS), duplicates.sketches(images.x)
    if images.kept_in is not None:
        listed = {name: value if name == "images" else value.tolist() for name, value in vars(pixels).items()}
        note = {"version": VERSION, "pixels": listed, "hashes": base64.b64encode(sketches.hashes.tobytes()).decode()}
        with contextlib.suppress(DataError):  # only the owner may write to this cache, or its disk is full
            images.kept_in.add_note(NOTE, note)
    return pixels, sketches


def hashes(images: ImageSet) -> Hashes | None:
    """Return the hashes of images' sketches if they are known already; equal images have equal ones."""
    kept = _kept(images)
    return kept and _decoded(kept["hashes"])


def _decoded(text: str) -> Hashes:
    return np.frombuffer(base64.b64decode(text), np.uint64).reshape(-1, duplicates.WORDS)


def _kept(images: ImageSet) -> Any:
    kept = None if images.kept_in is None else images.kept_in.note(NOTE)
    return kept if isinstance(kept, dict) and kept.get("version") == VERSION else None
