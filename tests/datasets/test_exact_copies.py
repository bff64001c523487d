"""Exact copies among decoded images: counted by hand."""

import numpy as np
from numpy.typing import NDArray
from refusals import worded

from fedshift_datasets.base import ImageSet
from fedshift_datasets.quality import exact_copies
from fedshift_datasets.quality.exact_copies import Role


def images(*greys: int, labels: tuple[int, ...] = ()) -> ImageSet:
    """Return images of 16 x 16 pixels, one for each grey level."""
    x: NDArray[np.uint8] = np.stack([np.full((16, 16, 3), grey, np.uint8) for grey in greys])
    return ImageSet(x, np.array(labels or [0] * len(greys), np.int64))


def test_test_images_that_are_training_images_are_counted_once() -> None:
    """Of Bonn's tests 2 and 3 are trained on, 3 at both sites; Aachen's 9 is twice in its test set and trained on."""
    sets = [
        Role("Aachen", False, images(1, 2, 3, 9)),
        Role("Aachen", True, images(9, 9, 20)),
        Role("Bonn", False, images(3, 4)),
        Role("Bonn", True, images(2, 3, 30)),
    ]
    result = exact_copies.find(sets)
    assert result.tests == 6
    assert result.trained[2] == ((3, 0), (0, 1))
    (line,) = exact_copies.lines(result, sets, lambda place: f"{sets[place[0]].domain}/{place[1]}")
    worded(line, "4 of 6", "Aachen 2, Bonn 2", "Aachen/0 = Aachen/3")
    assert exact_copies.lines(exact_copies.find(sets[:1]), sets, str) == []


def test_the_same_pixels_with_two_labels() -> None:
    sets = [Role("a", False, images(1, 2, labels=(0, 1))), Role("b", False, images(1, 2, labels=(1, 1)))]
    result = exact_copies.find(sets)
    assert (result.trained, result.two_labels) == ((), (((0, 0), (1, 0)),))
    worded(*exact_copies.lines(result, sets, str), "1 pair", "(0, 0) = (1, 0)")
