"""Small files of the digits, in the layouts in which they are published."""

import bz2
import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

from fedshift_datasets.base import ImageSet, Source, Split
from fedshift_datasets.io import decode, resize
from fedshift_datasets.listing import ImageFiles, Listing
from fedshift_datasets.sets import digits

LABELS = np.arange(12) % 10

Write = Callable[[Path, Split], Path]


def noise(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def load(root: Path | None, domain: str, split: Split = "train", *, download: bool = False) -> ImageSet:
    """Return the images of a domain."""
    return read(digits.find(domain, split, Source(root, download=download)), 32)


def read(found: ImageFiles, size: int) -> ImageSet:
    """Return the images that a listing or arrays stand for, as squares, without the cache."""
    if isinstance(found, Listing):
        return ImageSet(np.stack([decode.decode(item, size).pixels for item in found.items]), found.labels)
    images = found.read()
    return ImageSet(resize.resize(images.x, size), images.y)


def idx(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(root: Path, split: Split, *, suffix: str = "", labels: NDArray[Any] = LABELS) -> Path:
    """Write MNIST's two files of one split below ``root`` and return that of the images."""
    raw, stem = root / "MNIST" / "raw", "train" if split == "train" else "t10k"
    raw.mkdir(parents=True, exist_ok=True)
    pack = gzip.compress if suffix else bytes
    (raw / f"{stem}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx(labels.astype(np.uint8))))
    images = raw / f"{stem}-images-idx3-ubyte{suffix}"
    images.write_bytes(pack(idx(noise(12, 28, 28))))
    return images


def write_usps(root: Path, split: Split, *, labels: NDArray[Any] = LABELS) -> Path:
    """Write a USPS file: labels 1 to 10, pixels from -1 to 1 as `index:value`."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / ("usps.bz2" if split == "train" else "usps.t.bz2")
    pixels = noise(12, 256).astype(float) / 255 * 2 - 1
    lines = [
        f"{label + 1} " + " ".join(f"{i + 1}:{value:.6f}" for i, value in enumerate(row)) + " \n"
        for label, row in zip(labels, pixels, strict=True)
    ]
    path.write_bytes(bz2.compress("".join(lines).encode()))
    return path


def write_svhn(root: Path, split: Split, *, labels: NDArray[Any] = LABELS) -> Path:
    """Write an SVHN file: X (32, 32, 3, N), y (N, 1) with 10 for the digit 0."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / f"{split}_32x32.mat"
    y = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
    savemat(path, {"X": noise(12, 32, 32, 3).transpose(1, 2, 3, 0), "y": y}, do_compression=True)
    return path


def write_folder(folder: Path) -> None:
    """Write one grey 20x20 image of each class; the level of class k is 20 k."""
    for k in range(10):
        path = folder / str(k) / "a.png"
        path.parent.mkdir(parents=True)
        Image.fromarray(np.full((20, 20), 20 * k, np.uint8)).save(path)


NATIVE: dict[str, Write] = {"mnist": write_mnist, "usps": write_usps, "svhn": write_svhn}
