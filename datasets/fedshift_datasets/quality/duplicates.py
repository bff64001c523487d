"""Finds nearly equal images by their decoded pixels: re-encoded, resized or slightly changed copies.

Each image is reduced to 16 x 16 grey means. Its hash of 112 bits states which neighbours to the right and below, two by
two, are brighter. Two images are nearly the same if their hashes differ in at most :data:`MOST_BITS` bits, their mean
brightness in at most :data:`MOST_LEVELS` levels of 255, and their grey means, each less its mean, in at most the share
:data:`MOST_APART` of their norm. The bounds were set on PACS: the pairs found there are copies, and few copies saved
again as JPEG of quality 20, or reduced to three quarters, are missed.

After dHash (N. Krawetz, "Kind of Like That", 2013).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from math import comb

import numpy as np
from numpy.typing import NDArray

from fedshift_datasets.arrays import Flags, Floats, Hashes, Indices, Numbers, Pixels

MOST_BITS = 10
MOST_LEVELS = 12.0
MOST_APART = 0.15
BITS = 112  # of a hash
WORDS = 2  # of 64 bits, in which a hash is kept
_SIDE = 16  # of the grey means
_EDGE = 2.0  # levels by which a neighbour must be brighter; less is noise of an encoder
_BLOCK = 2048  # images on each side of one comparison
_PIXELS = 1 << 18  # of images whose grey means are computed at a time
_FLAT = 32.0  # norm below which an image has one colour: 2 levels at each of 256 places
_MOST = 5_000_000  # compared pairs of similar hashes; images of one colour may give any number
_CHUNK = 20_000  # of them at a time
_TOGETHER = 2  # parts of a hash that are compared as one, where images are very many
_DEARER = 8  # times that a comparison of images with the same parts takes longer than one of all with all
_SORTED = 12  # comparisons of all with all that take as long as bringing an image in order
_STEP = 6  # from each so many-th choice of parts it is estimated how many images have the same ones
_GREY = np.array([0.299, 0.587, 0.114], np.float32)

#: Returns the grey means of the images at ascending places (n,): (n, 256), float32.
Greys = Callable[[Indices], Floats]


@dataclass(frozen=True)
class Sketches:
    """Data of N images for comparison.

    Attributes:
        hashes: Hashes of 112 bits, the others zero, shape (N, 2), uint64.
        greys: Returns grey means; few images have a hash like that of another one and need them.
    """

    hashes: Hashes
    greys: Greys


@dataclass(frozen=True)
class Pairs:
    """Pairs of nearly equal images.

    Attributes:
        places: Places of both, shape (P, 2), the first the smaller, ascending.
        complete: False if there were too many to compare all.
    """

    places: Indices
    complete: bool


def sketches(images: Pixels, hashes: Hashes | None = None) -> Sketches:
    """Return the sketches of images of shape (N, S, S, 3), S at least 16; ``hashes``, if they are known already."""
    made = np.concatenate([np.empty((0, WORDS), np.uint64), *_hashes(images)]) if hashes is None else hashes
    return Sketches(made, lambda places: _greys(images[places]))


def _hashes(images: Pixels) -> Iterator[Hashes]:
    """Yield the hashes of images, some at a time."""
    step = max(1, min(_BLOCK, _PIXELS // (images.shape[1] * images.shape[2])))
    for first in range(0, len(images), step):
        greys = _greys_of_some(images[first : first + step])
        coarse = greys.reshape(len(greys), _SIDE // 2, 2, _SIDE // 2, 2).mean((2, 4))
        right = coarse[:, :, 1:] - coarse[:, :, :-1] > _EDGE
        below = coarse[:, 1:, :] - coarse[:, :-1, :] > _EDGE
        bits = np.zeros((len(greys), 64 * WORDS), bool)
        bits[:, :BITS] = np.concatenate([_rows(right), _rows(below)], axis=1)
        yield np.packbits(bits, axis=1).view(np.uint64)


def _rows(x: Numbers) -> Numbers:
    """Return (N, a, b) as (N, a * b), N may be 0."""
    return x.reshape(len(x), x.shape[1] * x.shape[2])


def _greys(images: Pixels) -> Floats:
    """Return grey means of images, (N, 256)."""
    step = max(1, _PIXELS // (images.shape[1] * images.shape[2]))
    parts = [_rows(_greys_of_some(images[first : first + step])) for first in range(0, len(images), step)]
    return np.concatenate([np.empty((0, _SIDE * _SIDE), np.float32), *parts])


def _greys_of_some(images: Pixels) -> Floats:
    """Return grey means over a grid of 16 x 16 parts, (N, 16, 16)."""
    edges = np.arange(_SIDE) * images.shape[1] // _SIDE
    widths = np.diff(np.append(edges, images.shape[1])).astype(np.float32)
    grey = images.astype(np.float32) @ _GREY
    sums = np.add.reduceat(np.add.reduceat(grey, edges, axis=1), edges, axis=2)
    return (sums / np.outer(widths, widths)).astype(np.float32)


def joined(parts: Sequence[Sketches]) -> Sketches:
    """Return the sketches of several sets of images, one after the other."""
    ends = np.cumsum([len(part.hashes) for part in parts])

    def greys(places: Indices) -> Floats:
        cuts = np.searchsorted(places, ends)
        of_each = zip(parts, [0, *ends], np.split(places, cuts), strict=False)
        return np.concatenate([part.greys(some - start) for part, start, some in of_each if len(some)])

    return Sketches(np.concatenate([part.hashes for part in parts]), greys)


def pairs(images: Sketches) -> Pairs:
    """Return all pairs of nearly equal images among all pairs."""
    near: list[Indices] = []
    seen = 0
    greys = _once(images)
    for first, second in _in_chunks(_near(images.hashes)):
        same = _alike(greys(first), greys(second))
        near.append(np.stack([first[same], second[same]], axis=1))
        seen += len(first)
        if seen > _MOST:
            break
    places = np.concatenate([np.zeros((0, 2), np.int64), *near])
    return Pairs(places[np.lexsort((places[:, 1], places[:, 0]))], complete=seen <= _MOST)


def _once(images: Sketches) -> Greys:
    """Return what returns grey means at any places, and computes those of an image once."""
    # Memory that is not written takes no room.
    known, kept = np.zeros(len(images.hashes), bool), np.empty((len(images.hashes), _SIDE * _SIDE), np.float32)

    def greys(places: Indices) -> Floats:
        new = np.unique(places[~known[places]])
        if len(new):
            kept[new] = images.greys(new)
            known[new] = True
        return kept[places]

    return greys


def _alike(a: Floats, b: Floats) -> Flags:
    """Return a mask of the pairs of grey means, (P, 256) each, that are nearly equal."""
    mean_a, mean_b = a.mean(axis=1, keepdims=True), b.mean(axis=1, keepdims=True)
    a, b = a - mean_a, b - mean_b
    norm = np.maximum(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1))
    near: Flags = np.linalg.norm(a - b, axis=1) <= MOST_APART * np.maximum(norm, _FLAT)
    as_bright: Flags = np.abs(mean_a - mean_b)[:, 0] <= MOST_LEVELS
    return near & as_bright


#: Places of the first and of the second image of pairs, the first the smaller.
_Places = tuple[Indices, Indices]


def _in_chunks(found: Iterator[_Places]) -> Iterator[_Places]:
    """Yield the same pairs, a bounded number at a time."""
    for first, second in found:
        for start in range(0, len(first), _CHUNK):
            yield first[start : start + _CHUNK], second[start : start + _CHUNK]


def _near(hashes: Hashes) -> Iterator[_Places]:
    """Yield the places of pairs whose hashes differ in few bits, each pair once."""
    number = len(hashes)
    cost, together = number * (number - 1) // 2, 0
    for more in range(1, _TOGETHER + 1):
        orders = _SORTED * number * comb(MOST_BITS + more, more)
        if orders < cost:
            cost, together = min((cost, together), (orders + _DEARER * _shared(hashes, more), more))
    return _by_parts(hashes, together) if together else _all_with_all(hashes)


def _shared(hashes: Hashes, together: int) -> int:
    """Return about how many pairs have parts of their hashes in common, a pair as often as there are such parts."""
    pairs, parts = 0, _parts(hashes, together)
    for _, key in islice(_keys(parts, together), 0, None, _STEP):
        key = np.sort(key)
        numbers = np.diff(np.flatnonzero(np.diff(key, prepend=~key[:1], append=~key[-1:])))
        pairs += int((numbers * (numbers - 1) // 2).sum())
    return pairs * _STEP


def _parts(hashes: Hashes, together: int) -> NDArray[np.uint16]:
    """Return the parts of hashes as numbers, (parts, N), so many that close ones have some ``together`` in common.

    If fewer were the same, more than :data:`MOST_BITS` bits would differ. A part takes bits that are far from each
    other, as neighbours are often the same.
    """
    bits = np.unpackbits(hashes.view(np.uint8), axis=1, count=BITS)
    parts = np.zeros((MOST_BITS + together, len(hashes)), np.uint16)
    for number in range(BITS):
        place = number % len(parts)
        parts[place] = parts[place] << 1 | bits[:, number]
    return parts


def _keys(parts: NDArray[np.uint16], together: int) -> Iterator[tuple[tuple[int, ...], Hashes]]:
    """Yield each choice of parts with their numbers as one, (N,)."""
    for chosen in combinations(range(len(parts)), together):
        key = np.zeros(parts.shape[1], np.uint64)
        for place in chosen:
            key = key << np.uint64(16) | parts[place]
        yield chosen, key


def _by_parts(hashes: Hashes, together: int) -> Iterator[_Places]:
    """Compare images that have parts of their hashes in common, which all pairs with few different bits have.

    Args:
        hashes: Hashes of the images.
        together: Of how many parts.
    """
    held: list[_Places] = []
    waiting, parts = 0, _parts(hashes, together)
    for chosen, unordered in _keys(parts, together):
        # Sorting numbers that hold their places is several times faster than sorting places.
        in_order = np.sort(unordered << np.uint64(32) | np.arange(len(unordered), dtype=np.uint64))
        order = (in_order & np.uint64(2**32 - 1)).astype(np.int64)
        key, sorted_hashes = in_order >> np.uint64(32), hashes[order]
        at, apart = np.arange(len(order)), 1
        while len(at := at[: np.searchsorted(at, len(order) - apart)]):
            at = at[key[at] == key[at + apart]]  # who differs from the next one differs from all that follow
            close = at[_differing(sorted_hashes[at], sorted_hashes[at + apart]) <= MOST_BITS]
            first, second = order[close], order[close + apart]
            # Those that have other parts before in common have been compared.
            same = parts[: chosen[-1], first] == parts[: chosen[-1], second]
            new = same.sum(axis=0) < together
            held.append((first[new], second[new]))
            waiting += int(new.sum())
            if waiting >= _CHUNK:
                yield _together(held)
                held, waiting = [], 0
            apart += 1
    yield _together(held)


def _together(held: Sequence[_Places]) -> _Places:
    both = np.concatenate([np.empty((2, 0), np.int64), *(np.stack(places) for places in held)], axis=1)
    return both.min(axis=0), both.max(axis=0)


def _differing(a: Hashes, b: Hashes) -> NDArray[np.intp]:
    """Return in how many bits hashes (n, 2) differ, (n,)."""
    bits = a ^ b
    # since NumPy 2
    ones = np.bitwise_count(bits) if hasattr(np, "bitwise_count") else np.unpackbits(bits.view(np.uint8), axis=1)
    number: NDArray[np.intp] = ones.sum(axis=1, dtype=np.intp)
    return number


def _all_with_all(hashes: Hashes) -> Iterator[_Places]:
    """Compare each image with each, blocks at a time."""

    def signs(start: int) -> Floats:
        bits = np.unpackbits(hashes[start : start + _BLOCK].view(np.uint8), axis=1, count=BITS)
        return np.where(bits, np.float32(1), np.float32(-1))

    for row in range(0, len(hashes), _BLOCK):
        rows = signs(row)
        for column in range(row, len(hashes), _BLOCK):
            alike = rows @ signs(column).T >= BITS - 2 * MOST_BITS
            first, second = np.nonzero(alike)
            kept = first + row < second + column
            yield first[kept] + row, second[kept] + column
