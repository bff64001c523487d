"""Ten images of two classes, and the cache that they are decoded into."""

from pathlib import Path

import numpy as np
from PIL import Image

from fedshift_datasets.base import ImageSet
from fedshift_datasets.io import cache, trees
from fedshift_datasets.listing import Listing

CLASSES = ("cat", "dog")
COUNT, SIZE = 10, 64
PART = cache.Part("pets", "photo", "train", SIZE)


def draw(path: Path, seed: int) -> None:
    """Write a BMP file: of one size in bytes, whatever its pixels are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (SIZE, SIZE, 3), np.uint8)).save(path)


def drawn(folder: Path) -> Path:
    """Write the images, and return their folder."""
    for number in range(COUNT):
        draw(folder / CLASSES[number % 2] / f"{number}.bmp", number)
    return folder


def listed(photos: Path) -> Listing:
    """Return the images of a folder, not yet decoded."""
    return trees.list_folders(photos, CLASSES)


def originals(photos: Path) -> np.ndarray:
    """Return the pixels of the files."""
    return np.stack([np.asarray(Image.open(item.path)) for item in listed(photos).items])


def load(photos: Path, images: Listing | None = None) -> tuple[ImageSet, int]:
    """Return the images, and how many were decoded for it."""
    finished: list[int] = []
    images = listed(photos) if images is None else images
    return cache.load(PART, images, workers=2, progress=finished.append), sum(finished)


def part_of(folder: Path) -> Path:
    """Return the one part that the cache keeps."""
    (part,) = folder.glob("[!.]*")
    return part
