"""What a loader returns is held to the description of an image set."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedshift_core.errors import DataError
from fedshift_datasets.base import ImageSet, checked

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
