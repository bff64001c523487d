"""Images that are nearly the same: copies are found, whatever an encoder made of them, and others are not."""

import io

import numpy as np
import pytest
from numpy.typing import NDArray
from own_sites import CLASSES, picture
from PIL import Image
from refusals import worded

from fedshift_datasets.base import ImageSet
from fedshift_datasets.quality import duplicates, exact_copies
from fedshift_datasets.quality.exact_copies import Role

Images = NDArray[np.uint8]


@pytest.fixture(scope="module")
def images() -> Images:
    """Return 90 different images of 64 pixels, 30 a class."""
    rng = np.random.default_rng(1)
    made = [picture("south", kind, rng).resize((64, 64)) for kind in CLASSES for _ in range(30)]
    return np.stack([np.asarray(image) for image in made])


def found(images: Images) -> set[tuple[int, int]]:
    result = duplicates.pairs(duplicates.sketches(images))
    assert result.complete
    return {(first, second) for first, second in result.places.tolist()}


def saved_again(images: Images, quality: int, side: int) -> Images:
    again = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR).save(file, "JPEG", quality=quality)
        again.append(np.asarray(Image.open(file).resize((64, 64), Image.Resampling.BILINEAR)))
    return np.stack(again)


@pytest.mark.parametrize(("quality", "side"), [(90, 64), (40, 64), (90, 48)])
def test_copies_are_found(images: Images, quality: int, side: int) -> None:
    pairs = found(np.concatenate([images, saved_again(images, quality, side)]))
    wanted = {(i, i + len(images)) for i in range(len(images))}
    assert pairs <= wanted
    assert len(pairs) > 0.95 * len(wanted)


def test_brighter_or_mirrored_is_not_the_same(images: Images) -> None:
    assert found(images) == found(images[:0]) == set()
    assert found(np.concatenate([images[:30], np.minimum(images[:30].astype(int) + 40, 255).astype(np.uint8)])) == set()
    assert not any(second - first == 30 for first, second in found(np.concatenate([images[:30], images[:30, :, ::-1]])))


@pytest.mark.parametrize("number", [50, 500, 3000])
def test_copies_are_found_among_few_and_very_many(number: int) -> None:
    """Images compared all with all, or by parts of their hashes, have the same pairs."""
    rng = np.random.default_rng(0)
    many = rng.integers(0, 256, (number, 8, 8, 3), np.uint8).repeat(4, axis=1).repeat(4, axis=2)
    again = (many[:40].astype(int) + rng.integers(-6, 7, (40, 32, 32, 3))).clip(0, 255).astype(np.uint8)
    parts = duplicates.joined([duplicates.sketches(many), duplicates.sketches(again)])
    assert {*map(tuple, duplicates.pairs(parts).places.tolist())} == {(i, number + i) for i in range(40)}


# --- exact copies -------------------------------------------------------------------------------------------


def set_of(*greys: int, labels: tuple[int, ...] = ()) -> ImageSet:
    """Return set_of of 16 x 16 pixels, one for each grey level."""
    x: NDArray[np.uint8] = np.stack([np.full((16, 16, 3), grey, np.uint8) for grey in greys])
    return ImageSet(x, np.array(labels or [0] * len(greys), np.int64))


def test_test_images_that_are_training_images_are_counted_once() -> None:
    """Of Bonn's tests 2 and 3 are trained on, 3 at both sites; Aachen's 9 is twice in its test set and trained on."""
    sets = [
        Role("Aachen", False, set_of(1, 2, 3, 9)),
        Role("Aachen", True, set_of(9, 9, 20)),
        Role("Bonn", False, set_of(3, 4)),
        Role("Bonn", True, set_of(2, 3, 30)),
    ]
    result = exact_copies.find(sets)
    assert result.tests == 6
    assert result.trained[2] == ((3, 0), (0, 1))
    (line,) = exact_copies.lines(result, sets, lambda place: f"{sets[place[0]].domain}/{place[1]}")
    worded(line, "4 of 6", "Aachen 2, Bonn 2", "Aachen/0 = Aachen/3")
    assert exact_copies.lines(exact_copies.find(sets[:1]), sets, str) == []


def test_the_same_pixels_with_two_labels() -> None:
    sets = [Role("a", False, set_of(1, 2, labels=(0, 1))), Role("b", False, set_of(1, 2, labels=(1, 1)))]
    result = exact_copies.find(sets)
    assert (result.trained, result.two_labels) == ((), (((0, 0), (1, 0)),))
    worded(*exact_copies.lines(result, sets, str), "1 pair", "(0, 0) = (1, 0)")
