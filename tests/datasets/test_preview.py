"""The contact sheet: where things are drawn, and what happens where something does not fit."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedshift_datasets.base import ImageSet
from fedshift_datasets.quality import preview
from fedshift_datasets.quality.preview import PAD, contact_sheet


def flat_set(labels: list[int], *, height: int = 32, width: int = 32) -> ImageSet:
    """Images of one colour each: (label * 20, place in the set, 200)."""
    x = np.zeros((len(labels), height, width, 3), np.uint8)
    for place, label in enumerate(labels):
        x[place] = (label * 20, place, 200)
    return ImageSet(x, np.array(labels, np.int64))


def area_of(sheet: Image.Image, colour: tuple[int, int, int]) -> int:
    return int(np.sum(np.all(np.asarray(sheet) == colour, axis=-1)))


def columns_of(sheet: Image.Image, colour: tuple[int, int, int]) -> list[int]:
    return sorted({int(at) for at in np.nonzero(np.all(np.asarray(sheet) == colour, axis=-1))[1]})


def test_size_follows_from_cells_and_labels() -> None:
    sets = {"a": flat_set([0, 1, 2]), "b": flat_set([2, 1, 0])}
    sheet = contact_sheet(sets, ("x", "y", "z"), per_class=2, scale=2)
    left = PAD + preview._width("b") + PAD
    top = PAD + preview.LINE + PAD
    assert sheet.mode == "RGB"
    assert sheet.size == (left + 3 * (64 + PAD), top + 2 * (2 * (64 + PAD) + PAD))


def test_long_names_are_cut() -> None:
    short = contact_sheet({"a": flat_set([0])}, ("x",))
    for domain, name in (("a" * 500, "x"), ("a", "a_rather_long_name_of_a_class_that_does_not_fit_anywhere" * 9)):
        long = contact_sheet({domain: flat_set([0])}, (name,))
        assert long.width <= short.width + preview.TEXT_LIMIT and long.height <= short.height + preview.TEXT_LIMIT


def test_first_images_of_each_class_are_shown_enlarged() -> None:
    sheet = contact_sheet({"a": flat_set([1, 0, 1, 1])}, ("x", "y"), per_class=2, scale=3)
    assert area_of(sheet, (20, 0, 200)) == 96 * 96
    assert area_of(sheet, (20, 2, 200)) == 96 * 96
    assert area_of(sheet, (20, 3, 200)) == 0
    assert area_of(sheet, (0, 1, 200)) == 96 * 96
    assert max(columns_of(sheet, (0, 1, 200))) < min(columns_of(sheet, (20, 0, 200)))
    assert columns_of(sheet, (20, 0, 200)) == columns_of(sheet, (20, 2, 200))


def test_missing_class_leaves_a_blank_cell() -> None:
    sheet = contact_sheet({"a": flat_set([0, 2]), "b": flat_set([0, 1, 2])}, ("x", "y", "z"), per_class=1)
    assert area_of(sheet, preview.BLANK) == 64 * 64
    assert columns_of(sheet, preview.BLANK) == columns_of(sheet, (20, 1, 200))


@pytest.mark.parametrize("more", [{"sets": {}}, {"classes": ()}, {"per_class": 0}, {"scale": 0}])
def test_nothing_to_show_is_refused(more: dict[str, Any]) -> None:
    given: dict[str, Any] = {"sets": {"a": flat_set([0])}, "classes": ("x",), "per_class": 1, "scale": 1} | more
    with pytest.raises(ValueError, match="at least 1"):
        contact_sheet(**given)
