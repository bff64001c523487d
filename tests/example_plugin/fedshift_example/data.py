"""Stripes in four directions, light on dark in one domain, dark on light with noise in the other; drawn, not read."""

from functools import partial

import numpy as np

from fedshift_core.seeding import generator
from fedshift_datasets.base import ImageSet, Source, Split
from fedshift_datasets.listing import Arrays

DOMAINS = ("light", "dark")
CLASSES = ("across", "down", "rising", "falling")
NUMBER = {"train": 400, "test": 100}


def find(domain: str, split: Split, source: Source) -> Arrays:
    """Return what draws one domain and split."""
    return Arrays((), partial(draw, domain, split, source.seed))


def draw(domain: str, split: Split, seed: int) -> ImageSet:
    """Draw images (N, 32, 32, 3), uint8, whose class is the direction of their stripes, (N,)."""
    rng = generator(seed, f"stripes-{domain}-{split}")
    y = np.arange(NUMBER[split], dtype=np.int64) % len(CLASSES)
    row, column = np.mgrid[0:32, 0:32]
    place = np.stack([row, column, row + column, row - column])[y]  # N x 32 x 32
    wave = np.sin(place / rng.uniform(1.2, 2.0, (len(y), 1, 1)) + rng.uniform(0, 6.3, (len(y), 1, 1)))
    x = 128 + (70 if domain == "light" else -70) * wave
    if domain == "dark":
        x = x + rng.normal(0, 25, x.shape)
    return ImageSet(np.repeat(x.clip(0, 255).astype(np.uint8)[..., None], 3, axis=3), y)
