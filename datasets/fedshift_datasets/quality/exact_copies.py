"""Finds exact copies among decoded images: test images that are also training images, and images with two labels.

Two images are copies if all their pixels are equal after decoding and resizing, as a model sees them. Another module
finds copies that were saved again or changed (:mod:`fedshift_datasets.quality.duplicates`).
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedshift_core.plural import plural
from fedshift_datasets.arrays import Indices, Pixels
from fedshift_datasets.base import ImageSet
from fedshift_datasets.quality import findings

_ROWS = 4  # an image is divided by rows that are compared first, to read little of mapped images
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
        labels = [int(sets[number].images.y[place]) for number, place in group]
        two_labels += [(first, place) for place, label in zip(group, labels, strict=True) if label != labels[0]]
    return Copies(
        sum(len(role.images) for role in sets if role.is_test), tuple(sorted(trained)), tuple(sorted(two_labels))
    )


def _groups(sets: Sequence[Role]) -> list[list[Place]]:
    """Return groups of two or more places of images with the same pixels."""
    keys = _keys([role.images for role in sets])
    values, numbers = np.unique(np.concatenate([np.empty(0, np.int64), *keys]), return_counts=True)
    like_others = [np.flatnonzero(np.isin(of_set, values[numbers > 1])).tolist() for of_set in keys]
    places = [(number, place) for number, of_set in enumerate(like_others) for place in of_set]

    def pixels(at: Place) -> bytes:
        return hashlib.sha256(sets[at[0]].images.x[at[1]].tobytes()).digest()

    some = _by(lambda at: int(keys[at[0]][at[1]]), places)
    return [group for with_one_key in some for group in _by(pixels, with_one_key)]


def _keys(sets: Sequence[ImageSet]) -> list[Indices]:
    """Return for each image of each set a number that is the same for the same pixels, and seldom for others."""
    known = [hashes for images in sets if (hashes := findings.hashes(images)) is not None]
    if len(known) == len(sets):  # no image is read
        return [np.bitwise_xor.reduce(hashes, axis=1).view(np.int64) for hashes in known]
    return [np.array([_key(image) for image in np.asarray(images.x)], np.int64) for images in sets]


def _key(image: Pixels) -> int:
    step = max(1, len(image) // _ROWS)
    return hash(image[step::step].tobytes())


def _by(mark: Callable[[Place], object], places: Iterable[Place]) -> list[list[Place]]:
    """Return groups of two or more places that have one mark."""
    by_mark: dict[object, list[Place]] = defaultdict(list)
    for place in places:
        by_mark[mark(place)].append(place)
    return [group for group in by_mark.values() if len(group) > 1]


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
        by_domain = Counter(sets[place].domain for (place, _), _ in copies.trained)
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
