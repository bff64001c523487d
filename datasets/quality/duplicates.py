"""Finds nearly equal images by their decoded pixels: re-encoded, resized or slightly changed copies.

Each image is reduced to 16 x 16 grey means. Its hash of 112 bits states which neighbours to the right and below, two by
two, are brighter. Two images are nearly the same if their hashes differ in at most :data:`MOST_BITS` bits, their mean
brightness in at most :data:`MOST_LEVELS` levels of 255, and their grey means, each less its mean, in at most the share
:data:`MOST_APART` of their norm. The bounds were set on PACS: the pairs found there are copies, and few copies saved
again as JPEG of quality 20, or reduced to three quarters, are missed.

After dHash (N. Krawetz, "Kind of Like That", 2013).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_BITS = 10
MOST_LEVELS = 12.0
MOST_APART = 0.15
_SIDE = 16  # of the grey means
_EDGE = 2.0  # levels by which a neighbour must be brighter; less is noise of an encoder
_BLOCK = 2048  # images on each side of one comparison
_FLAT = 32.0  # norm below which an image has one colour: 2 levels at each of 256 places
_MOST = 5_000_000  # compared pairs of similar hashes; images of one colour may give any number
_CHUNK = 20_000  # of them at a time
_GREY = np.array([0.299, 0.587, 0.114], np.float32)


@dataclass(frozen=True)
class Sketches:
    """Data of N images for comparison.

    Attributes:
        hashes: Bits as -1 and 1, shape (N, 112), float32.
        greys: Grey means, shape (N, 256), float32.
    """

    hashes: NDArray[np.float32]
    greys: NDArray[np.float32]


@dataclass(frozen=True)
class Pairs:
    """Pairs of nearly equal images.

    Attributes:
        places: Places of both, shape (P, 2), the first the smaller, ascending.
        complete: False if there were too many to compare all.
    """

    places: NDArray[np.int64]
    complete: bool


def sketches(images: NDArray[np.uint8]) -> Sketches:
    """Return the sketches of images of shape (N, S, S, 3), S at least 16."""
    parts = [_greys(images[first : first + _BLOCK]) for first in range(0, len(images), _BLOCK)]
    greys = np.concatenate(parts) if parts else np.zeros((0, _SIDE, _SIDE), np.float32)
    coarse = greys.reshape(len(greys), _SIDE // 2, 2, _SIDE // 2, 2).mean((2, 4))
    right = coarse[:, :, 1:] - coarse[:, :, :-1] > _EDGE
    below = coarse[:, 1:, :] - coarse[:, :-1, :] > _EDGE
    bits = np.concatenate([_rows(right), _rows(below)], axis=1)
    return Sketches(np.where(bits, 1, -1).astype(np.float32), _rows(greys))


def _rows(x: NDArray[Any]) -> NDArray[Any]:
    """Return (N, a, b) as (N, a * b), N may be 0."""
    return x.reshape(len(x), x.shape[1] * x.shape[2])


def _greys(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return grey means over a grid of 16 x 16 parts, (N, 16, 16)."""
    edges = np.arange(_SIDE) * images.shape[1] // _SIDE
    widths = np.diff(np.append(edges, images.shape[1])).astype(np.float32)
    grey = images.astype(np.float32) @ _GREY
    sums = np.add.reduceat(np.add.reduceat(grey, edges, axis=1), edges, axis=2)
    return (sums / np.outer(widths, widths)).astype(np.float32)


def joined(parts: Sequence[Sketches]) -> Sketches:
    """Return the sketches of several sets of images, one after the other."""
    return Sketches(np.concatenate([part.hashes for part in parts]), np.concatenate([part.greys for part in parts]))


def pairs(images: Sketches) -> Pairs:
    """Return all pairs of nearly equal images among all pairs."""
    near: list[NDArray[np.int64]] = []
    seen = 0
    for first, second in _near(images.hashes):
        same = _alike(images.greys[first], images.greys[second])
        near.append(np.stack([first[same], second[same]], axis=1))
        seen += len(first)
        if seen > _MOST:
            return Pairs(_in_order(near), complete=False)
    return Pairs(_in_order(near), complete=True)


def _alike(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return a mask of the pairs of grey means, (P, 256) each, that are nearly equal."""
    mean_a, mean_b = a.mean(axis=1, keepdims=True), b.mean(axis=1, keepdims=True)
    a, b = a - mean_a, b - mean_b
    norm = np.maximum(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1))
    near: NDArray[np.bool_] = np.linalg.norm(a - b, axis=1) <= MOST_APART * np.maximum(norm, _FLAT)
    as_bright: NDArray[np.bool_] = np.abs(mean_a - mean_b)[:, 0] <= MOST_LEVELS
    return near & as_bright


def _near(hashes: NDArray[np.float32]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the places of pairs whose hashes differ in few bits."""
    bits = hashes.shape[1]
    for row in range(0, len(hashes), _BLOCK):
        for column in range(row, len(hashes), _BLOCK):
            alike = hashes[row : row + _BLOCK] @ hashes[column : column + _BLOCK].T >= bits - 2 * MOST_BITS
            first, second = np.nonzero(alike)
            kept = first + row < second + column
            first, second = first[kept] + row, second[kept] + column
            for start in range(0, len(first), _CHUNK):
                yield first[start : start + _CHUNK], second[start : start + _CHUNK]


def _in_order(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    places = np.concatenate(parts) if parts else np.zeros((0, 2), np.int64)
    order: NDArray[np.int64] = np.lexsort((places[:, 1], places[:, 0]))
    return places[order]
