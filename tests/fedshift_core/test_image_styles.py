"""Statistics of single images on the wire: what comes back, and what makes no sense is refused on either side."""

from typing import Any

import numpy as np
import pytest
from refusals import refused

from fedshift_core.errors import FedShiftError
from fedshift_core.limits import Refused
from fedshift_core.wire import image_styles
from fedshift_core.wire.image_styles import ImageStyles
from fedshift_datasets.quality import pixel_statistics

ROWS = ((0.1, 0.2, 0.3, 0.4, 0.5, 0.6), (0.6, 0.5, 0.4, 0.3, 0.2, 0.1))


def test_numbers_of_single_images_against_numpy() -> None:
    x = np.random.default_rng(0).integers(0, 256, (70, 5, 4, 3)).astype(np.uint8)
    of = x / 255.0
    slow = np.hstack([of.mean(axis=(1, 2)), of.std(axis=(1, 2), ddof=1)])
    np.testing.assert_allclose(pixel_statistics.styles(x), slow, atol=1e-12)
    assert pixel_statistics.styles(x[:0]).shape == (0, 6)


@pytest.mark.parametrize(
    "values",
    [[0.5] * 7, [0.5] * 18, "0.5", [0.5] * 5 + [0.8], [float("nan")] + [0.5] * 5, [1] + [0.5] * 5, [-0.1] + [0.5] * 5],
)
def test_rows_come_back_and_those_that_make_no_sense_are_refused(values: Any) -> None:
    assert image_styles.read({"statistics-styles": [value for row in ROWS for value in row]}, 2) == ROWS
    assert image_styles.read({}, 2) == ()
    with refused(Refused, "statistics-styles"):
        image_styles.read({"statistics-styles": values}, 2)


def test_those_of_all_nodes_and_of_the_others() -> None:
    given = ImageStyles.of([(0, ROWS), (2, ()), (3, ROWS[:1])])
    again = ImageStyles.from_arrays(given.to_arrays())
    assert again.nodes.tolist() == [0, 0, 3] and again.of_others(0).nodes.tolist() == [3]
    np.testing.assert_allclose(again.std[2], [0.4, 0.5, 0.6], rtol=1e-6)
    assert len(again.of_others(1)) == 3
    for name, array in (
        ("nodes", np.array([0, 3, 0])), ("mean", np.full((3, 3), 1.5, np.float32)), ("nodes", np.zeros(0, np.int64)),
        ("std", np.full((3, 2), 0.5, np.float32)), ("std", np.full((3, 3), np.nan, np.float32)), ("mean", np.ones(3)),
    ):  # fmt: skip
        with refused(FedShiftError, "image-statistics"):
            ImageStyles.from_arrays({**given.to_arrays(), name: array})
    with refused(FedShiftError, "'mean'"):
        ImageStyles.from_arrays({"nodes": given.nodes})
