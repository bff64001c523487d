"""The contact sheet: where things are drawn, and what happens where something does not fit."""

import numpy as np
import pytest
from PIL import Image

from fedshift_datasets.base import ImageSet
from fedshift_datasets.quality import preview
from fedshift_datasets.quality.preview import PAD, contact_sheet

WHITE = (255, 255, 255)


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


def test_first_images_of_each_class_are_shown_enlarged() -> None:
    sheet = contact_sheet({"a": flat_set([1, 0, 1, 1])}, ("x", "y"), per_class=2, scale=3)
    assert area_of(sheet, (20, 0, 200)) == 96 * 96
    assert area_of(sheet, (20, 2, 200)) == 96 * 96
    assert area_of(sheet, (20, 3, 200)) == 0
    assert area_of(sheet, (0, 1, 200)) == 96 * 96
    assert max(columns_of(sheet, (0, 1, 200))) < min(columns_of(sheet, (20, 0, 200)))
    assert columns_of(sheet, (20, 0, 200)) == columns_of(sheet, (20, 2, 200))


def test_enlarging_keeps_pixels_sharp() -> None:
    x = np.random.default_rng(0).integers(0, 255, (1, 8, 8, 3), dtype=np.uint8)
    sheet = np.asarray(contact_sheet({"a": ImageSet(x, np.zeros(1, np.int64))}, ("x",), per_class=1, scale=4))
    expected = x[0].repeat(4, axis=0).repeat(4, axis=1)
    left, top = PAD + preview._width("a") + PAD, PAD + preview.LINE + PAD
    assert np.array_equal(sheet[top : top + 32, left : left + 32], expected)


def test_missing_class_leaves_a_blank_cell() -> None:
    sheet = contact_sheet({"a": flat_set([0, 2]), "b": flat_set([0, 1, 2])}, ("x", "y", "z"), per_class=1)
    assert area_of(sheet, preview.BLANK) == 64 * 64
    assert columns_of(sheet, preview.BLANK) == columns_of(sheet, (20, 1, 200))


def test_domain_names_stand_left_of_their_blocks() -> None:
    sheet = np.asarray(contact_sheet({"scan": flat_set([0]), "": flat_set([0])}, ("x",), per_class=1))
    left = PAD + preview._width("scan") + PAD
    first = PAD + preview.LINE + PAD
    second = first + 64 + 2 * PAD
    assert np.any(sheet[first : first + 64, :left] < 128)
    assert np.all(sheet[second:, :left] == WHITE)


def test_each_class_name_stands_over_its_column() -> None:
    sheet = np.asarray(contact_sheet({"": flat_set([0, 1, 2])}, ("one", "", "three"), per_class=1))
    left, top = PAD + 1 + PAD, PAD + preview.LINE
    dark = [bool(np.any(sheet[:top, left + k * (64 + PAD) : left + k * (64 + PAD) + 64] < 128)) for k in range(3)]
    assert dark == [True, False, True]


@pytest.mark.parametrize("side", [4, 224])
def test_long_class_names_do_not_overlap(side: int) -> None:
    names = tuple(f"{number}_a_rather_long_name_of_a_class_that_does_not_fit_anywhere" for number in range(12))
    column = max(preview.LINE, preview._shown_size(flat_set([0], height=side, width=side), 1)[0])
    headers = preview._headers(names, column)
    assert all(header.width <= column for header in headers)
    assert all(header.height <= preview.TEXT_LIMIT for header in headers)
    sheet = contact_sheet({"a": flat_set(list(range(12)), height=side, width=side)}, names, scale=1)
    assert sheet.width == PAD + preview._width("a") + PAD + 12 * (column + PAD)


def test_long_domain_names_are_cut() -> None:
    short = contact_sheet({"a": flat_set([0])}, ("x",))
    long = contact_sheet({"a" * 500: flat_set([0])}, ("x",))
    assert short.width < long.width <= short.width + preview.TEXT_LIMIT
    assert preview._fitted("short", 100) == "short"
    assert preview._fitted("b" * 100, 60).endswith(preview.ELLIPSIS)


@pytest.mark.parametrize(
    ("height", "width", "shown"),
    [(8, 8, (16, 16)), (64, 64, (128, 128)), (65, 65, (65, 65)), (224, 224, (128, 128)), (300, 150, (64, 128))],
)
def test_images_of_any_size_are_shown(height: int, width: int, shown: tuple[int, int]) -> None:
    images = flat_set([0], height=height, width=width)
    sheet = contact_sheet({"a": images}, ("x",), per_class=1, scale=2)
    assert area_of(sheet, (0, 0, 200)) == shown[0] * shown[1]


def test_domains_of_different_sizes_share_one_sheet() -> None:
    sets = {"a": flat_set([0, 1], height=16, width=16), "b": flat_set([1, 0])}
    sheet = contact_sheet(sets, ("x", "y"), per_class=1, scale=1)
    assert columns_of(sheet, (0, 0, 200))[0] == columns_of(sheet, (0, 1, 200))[0]
    assert columns_of(sheet, (20, 1, 200))[0] == columns_of(sheet, (20, 0, 200))[0]


def test_same_arguments_give_the_same_sheet() -> None:
    sheets = [contact_sheet({"a": flat_set([0, 1, 1, 0])}, ("x", "y")) for _ in range(2)]
    assert sheets[0].tobytes() == sheets[1].tobytes()


def test_nothing_to_show_is_refused() -> None:
    images = flat_set([0])
    for sets, classes, per_class, scale in [
        ({}, ("x",), 1, 1),
        ({"a": images}, (), 1, 1),
        ({"a": images}, ("x",), 0, 1),
        ({"a": images}, ("x",), 1, 0),
    ]:
        with pytest.raises(ValueError, match="at least 1"):
            contact_sheet(sets, classes, per_class=per_class, scale=scale)
