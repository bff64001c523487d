"""A user's own images for tests: three sites with cameras of their own, three classes, one broken file, one copy."""

import io
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CLASSES = ("bar", "cross", "disc")
#: Width and height, ground, and the suffix of each site's camera.
CAMERAS = {"north": ((96, 80), 40, "png"), "south": ((120, 90), 110, "jpg"), "west": ((64, 64), 15, "bmp")}
LATE = {"east": ((72, 72), 75, "png")}  # a site that joins later


def picture(site: str, kind: str, rng: np.random.Generator) -> Image.Image:
    """Return one image: a bright shape somewhere near the middle, over that site's ground with noise of its own."""
    (width, height), ground, _ = (CAMERAS | LATE)[site]
    y, x = np.mgrid[:height, :width]
    side = min(width, height)
    mid_x, mid_y = width / 2 + rng.uniform(-0.15, 0.15) * side, height / 2 + rng.uniform(-0.15, 0.15) * side
    size = side * rng.uniform(0.2, 0.35)
    shapes = {
        "disc": (x - mid_x) ** 2 + (y - mid_y) ** 2 < size**2,
        "bar": abs(x - mid_x) < size / 3,
        "cross": (abs(x - mid_x) < size / 4) | (abs(y - mid_y) < size / 4),
    }
    image: NDArray[np.float64] = np.full((height, width, 3), float(ground))
    image += rng.uniform(0, 60, size=(4, 4, 1)).repeat(height // 4 + 1, 0).repeat(width // 4 + 1, 1)[:height, :width]
    image[shapes[kind]] += rng.uniform(90, 130, size=3)
    image += rng.normal(0, 8, image.shape)
    return Image.fromarray(image.clip(0, 255).astype(np.uint8))


@cache
def files(sites: Sequence[str], number: int, seed: int) -> dict[Path, bytes]:
    """Return ``number`` images of each site."""
    rng, made = np.random.default_rng(seed), {}
    for site in sites:
        _, _, suffix = (CAMERAS | LATE)[site]
        for i in range(number):
            kind = CLASSES[i % len(CLASSES)]
            split = ("test" if i % 15 < 3 else "train",) if site == "west" else ()
            picture(site, kind, rng).save(file := io.BytesIO(), Image.registered_extensions()[f".{suffix}"])
            made[Path(site, *split, kind, f"{i:03d}.{suffix}")] = file.getvalue()
    return made


def write(root: Path, sites: Sequence[str], number: int = 80, seed: int = 0) -> None:
    """Write ``number`` images of each site."""
    for name, content in files(tuple(sites), number, seed).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def make(root: Path, number: int = 80, seed: int = 0) -> Path:
    """Write ``number`` images a site: two sites by class, one by split and class; and what a real folder has besides.

    In north/disc lies a broken file, in south/bar a text, and south/disc/copy.jpg is north/disc's first image again.
    """
    write(root, tuple(CAMERAS), number, seed)
    first = sorted((root / "north" / "disc").iterdir())[0]
    Image.open(first).save(root / "south" / "disc" / "copy.jpg", quality=70)
    (root / "north" / "disc" / "broken.png").write_bytes(first.read_bytes()[:400])
    (root / "south" / "bar" / "notes.txt").write_text("taken in May")
    return root


if __name__ == "__main__":
    if sys.argv[2:]:
        write(Path(sys.argv[1]), sys.argv[2:], seed=1)
    else:
        make(Path(sys.argv[1]))
