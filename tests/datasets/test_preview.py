"""Sheets of images and of their corruptions: where things are drawn, and what is not shown."""

from dataclasses import replace

import numpy as np
from PIL import Image

from fedshift_datasets.base import ImageSet
from fedshift_datasets.quality import preview
from fedshift_datasets.quality.preview import contact_sheet, corruption_sheet


def flat_set(labels: list[int], *, height: int = 32, width: int = 32) -> ImageSet:
    """Images of one colour each: (label * 20, place in the set, 200)."""
    x = np.zeros((len(labels), height, width, 3), np.uint8)
    for place, label in enumerate(labels):
        x[place] = (label * 20, place, 200)
    return ImageSet(x, np.array(labels, np.int64))


def area_of(sheet: Image.Image, colour: tuple[int, int, int]) -> int:
    return int(np.sum(np.all(np.asarray(sheet) == colour, axis=-1)))


def test_long_names_are_cut() -> None:
    short = contact_sheet({"a": flat_set([0])}, ("x",))
    for domain, name in (("a" * 500, "x"), ("a", "a_rather_long_name_of_a_class_that_does_not_fit_anywhere" * 9)):
        long = contact_sheet({domain: flat_set([0])}, (name,))
        assert long.width <= short.width + 200 and long.height <= short.height + 200


def test_the_outlines_of_masks_are_drawn_once_enlarged() -> None:
    images = flat_set([1])
    mask = np.zeros((1, 32, 32), np.uint8)
    mask[0, 10:20, 4:9] = 1
    outlined = contact_sheet({"a": replace(images, masks=mask)}, ("x", "y"), per_class=1)
    assert area_of(outlined, preview.OUTLINE) == 2 * 20 + 2 * 10 - 1
    assert area_of(contact_sheet({"a": images}, ("x", "y"), per_class=1), preview.OUTLINE) == 0


def test_a_sheet_of_corruptions_has_a_row_for_each_and_the_images_as_they_are() -> None:
    sheet = corruption_sheet(flat_set([1, 2]), (1, 5))
    assert area_of(sheet, (20, 0, 200)) >= 15 * 64 * 64 and sheet.height > 15 * 64
