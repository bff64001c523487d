"""The sheet of corruptions: a row for each, and the images as the corruptions make them."""

import numpy as np
import pytest
from refusals import refused

from fedshift_core.errors import ConfigError
from fedshift_datasets.base import ImageSet
from fedshift_datasets.corruptions import corrupt
from fedshift_datasets.quality.corruption_sheet import corruption_sheet
from fedshift_datasets.quality.preview import PAD


def some_images(count: int) -> ImageSet:
    x = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    return ImageSet(x, np.zeros(count, np.int64))


def test_cells_are_the_corrupted_images() -> None:
    images = some_images(5)
    sheet = corruption_sheet(images, ("fog", "contrast"), (2, 5), count=2, seed=4, scale=1)
    pixels = np.asarray(sheet)
    # Of five images the first and the third; from the right and from below, where no text stands: two images of three
    # columns, two rows.
    for row, name in enumerate(("fog", "contrast")):
        top = sheet.height - (2 - row) * (32 + 2 * PAD)
        for column, (image, severity) in enumerate((i, s) for i in (0, 1) for s in (0, 2, 5)):
            left = sheet.width - (6 - column) * (32 + PAD)
            expected = corrupt(images.x[[0, 2]], name, severity, np.array([0, 2]), 4)[image]
            assert np.array_equal(pixels[top : top + 32, left : left + 32], expected)
    assert sheet.mode == "RGB"


def test_what_cannot_be_shown_is_refused() -> None:
    with refused(ConfigError, "rain"):
        corruption_sheet(some_images(1), ("rain",))
    for more in ({"names": ()}, {"count": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            corruption_sheet(some_images(1), **more)
