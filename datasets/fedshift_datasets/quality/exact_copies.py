"""Finds exact copies among decoded images: test images that are also training images, and images with two labels.

Two images are copies if all their pixels are equal after decoding and resizing, as a model sees them. Another module
finds copies that were saved again or changed (:mod:`fedshift_datasets.quality.duplicates`).
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedshift_core.plural import plural
from fedshift_datasets.arrays import Hashes, Pixels
from fedshift_datasets.base import ImageSet

_ROWS = 3  # of pixels that are compared first, to read little of mapped images
_BLOCK = 1024  # images at a time
#: Place of an image: the index of its set, and its index in the set.
Place = tuple[int, int]


@dataclass(frozen=True)
class Role:
    """Images for training, or for testing.

    Attributes:
        domain: Their domain.
        is_test: They are test images, not training images.
        images: The images.
    """

    domain: str
    is_test: bool
    images: ImageSet


@dataclass(frozen=True)
class Copies:
    """Exact copies in a data set.

    Attributes:
        tests: Number of test images.
        trained: Pairs of a test image and a training image with the same pixels, one pair for each test image.
        two_labels: Pairs of images with the same pixels and different labels, one for each image after the first.
    """

    tests: int
    trained: tuple[tuple[Place, Place], ...]
    two_labels: tuple[tuple[Place, Place], ...]


def find(sets: Sequence[Role]) -> Copies:
    """Return the exact copies among all images of several sets."""
    trained: list[tuple[Place, Place]] = []
    two_labels: list[tuple[Place, Place]] = []
    for group in _groups(sets):
        training_image = next((place for place in group if not sets[place[0]].is_test), None)
        if training_image is not None:
            trained += [(place, training_image) for place in group if sets[place[0]].is_test]
        first = group[0]
        two_labels += [(first, place) for place in group[1:] if _label(sets, place) != _label(sets, first)]
    return Copies(
        sum(len(role.images) for role in sets if role.is_test), tuple(sorted(trained)), tuple(sorted(two_labels))
    )


def _label(sets: Sequence[Role], place: Place) -> int:
    return int(sets[place[0]].images.y[place[1]])


def _groups(sets: Sequence[Role]) -> list[list[Place]]:
    """Return groups of two or more places of images with the same pixels."""
    keys = [_keys(role.images.x) for role in sets]
    values, numbers = np.unique(np.concatenate([np.empty(0, np.uint64), *keys]), return_counts=True)
    shared = values[numbers > 1]
    with_one_key: dict[int, list[Place]] = defaultdict(list)
    for number, of_set in enumerate(keys):
        for place in np.flatnonzero(np.isin(of_set, shared)).tolist():
            with_one_key[int(of_set[place])].append((number, place))
    return [copies for group in with_one_key.values() for copies in _alike(group, lambda place: _pixels(sets, place))]


def _keys(x: Pixels) -> Hashes:
    """Return a number for each of images (N, H, W, 3), uint64: the same for the same pixels, seldom for others."""
    height, keys = x.shape[1], np.empty(len(x), np.uint64)
    rows = [height * (number + 1) // (_ROWS + 1) for number in range(_ROWS)]
    width = len(rows) * x.shape[2] * 3
    # Of odd numbers: a single different byte changes the sum. They depend on nothing but their number.
    weights = np.random.default_rng(0).integers(0, 2**64, width, np.uint64) | np.uint64(1)
    for first in range(0, len(x), _BLOCK):
        block = np.asarray(x[first : first + _BLOCK])[:, rows].reshape(-1, width)
        keys[first : first + _BLOCK] = block.astype(np.uint64) @ weights
    return keys


def _alike(places: Iterable[Place], part: Callable[[Place], Pixels]) -> list[list[Place]]:
    """Return groups of two or more places whose parts of pixels are equal."""
    by_digest: dict[bytes, list[Place]] = defaultdict(list)
    for place in places:
        pixels = part(place)
        digest = hashlib.blake2b(f"{pixels.shape}".encode(), digest_size=16)
        digest.update(np.ascontiguousarray(pixels).data)
        by_digest[digest.digest()].append(place)
    return [group for group in by_digest.values() if len(group) > 1]


def _pixels(sets: Sequence[Role], place: Place) -> Pixels:
    pixels: Pixels = sets[place[0]].images.x[place[1]]
    return pixels


def lines(copies: Copies, sets: Sequence[Role], name: Callable[[Place], str]) -> list[str]:
    """Return lines for the user on exact copies; empty if there are none.

    Args:
        copies: The result of :func:`find`.
        sets: Its argument.
        name: Returns the name of an image.
    """
    result = []
    if copies.trained:
        number = len(copies.trained)
        by_domain: dict[str, int] = defaultdict(int)
        for (place, _), _ in copies.trained:
            by_domain[sets[place].domain] += 1
        counts_text = ", ".join(f"{domain} {count}" for domain, count in sorted(by_domain.items()))
        test, train = copies.trained[0]
        result.append(
            f"exact copies: {number} of {copies.tests} test images {'is' if number == 1 else 'are'} trained on too, "
            f"pixel for pixel ({counts_text}); {name(test)} = {name(train)}"
        )
    if copies.two_labels:
        number = len(copies.two_labels)
        first, second = copies.two_labels[0]
        result.append(
            f"exact copies: {plural(number, 'pair')} of images with the same pixels and two "
            f"labels; {name(first)} = {name(second)}"
        )
    return result
