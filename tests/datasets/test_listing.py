"""Images before they are decoded, by column: the same items and pictures as one by one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedshift_core.errors import DataError
from fedshift_datasets.base import ImageSet, checked
from fedshift_datasets.listing import Files, Item, Listing

NAMES = ("/a/x/0.png", "/a/x/1.png", "/a/y/2.png")
ITEMS = tuple(Item(Path(name), name) for name in NAMES)


def test_files_are_items_that_are_made_when_they_are_asked_for() -> None:
    files = Files(NAMES)
    assert len(files) == 3 and tuple(files) == ITEMS and files[-1] == ITEMS[-1]
    assert isinstance(files[1:], Files) and files[1:] == ITEMS[1:] and files[::-1] == ITEMS[::-1]
    assert files == Files(NAMES) and files == ITEMS and files != Files(NAMES[:2]) and files != ITEMS[:2] and files != 3
    assert ITEMS[1] in files and repr(files) == "Files(3 images)"
    with pytest.raises(IndexError):
        files[3]


def test_pieces_of_one_file_have_it_once() -> None:
    pieces = Listing([Item(Path("/a.tar"), f"{place}.png", 512 * place, 100) for place in range(3)], np.zeros(3, int))
    assert pieces.sources == ("/a.tar",)
    assert pieces.names == ("0.png", "1.png", "2.png")


X = np.zeros((4, 8, 8, 3), np.uint8)


@pytest.mark.parametrize(
    ("x", "y", "found"),
    [
        (X, np.zeros(4, np.float32), r"labels of shape \(4,\) and type float32, expected \(4,\) and int64"),
        (X, np.zeros((4, 1), np.int64), r"labels of shape \(4, 1\) and type int64"),
        (X, np.zeros(4, np.int32), "type int32, expected"),
        (X[0], np.zeros(8, np.int64), r"images of shape \(8, 8, 3\), expected \(8, height, width, 3\)"),
    ],
)
def test_labels_and_images_of_another_type_or_shape_are_refused(x: NDArray[Any], y: NDArray[Any], found: str) -> None:
    with pytest.raises(DataError, match=found):
        checked(ImageSet(x, y), classes=2, size=8, where="there")
