"""Exact copies among decoded images: counted by hand."""

from typing import Any

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


def test_many_sets_are_compared_as_one_by_one() -> None:
    rng = np.random.default_rng(0)
    pool = rng.integers(0, 256, (6, 8, 8, 3), np.uint8)
    pool[1] = pool[0]
    pool[1, 0, 0, 0] ^= 1  # in no row that is looked at first
    sets, rows, first, first_trained = [], [], dict[bytes, Any](), dict[bytes, Any]()
    for s in range(5):
        made = ImageSet(pool[rng.integers(0, 6, 7)], rng.integers(0, 2, 7))
        sets.append(Role("ab"[s % 2], s % 3 == 0, made))
        rows += [((s, i), x.tobytes(), sets[-1].is_test) for i, x in enumerate(made.x)]
    for place, pixels, is_test in rows:
        first.setdefault(pixels, place)
        if not is_test:
            first_trained.setdefault(pixels, place)
    labels = {place: sets[place[0]].images.y[place[1]] for place, *_ in rows}
    trained = [(place, first_trained[x]) for place, x, is_test in rows if is_test and x in first_trained]
    two_labels = sorted((first[x], place) for place, x, _ in rows if labels[place] != labels[first[x]])
    result = exact_copies.find(sets)
    assert (list(result.trained), list(result.two_labels)) == (trained, two_labels) and trained and two_labels
