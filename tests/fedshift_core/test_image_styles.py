"""Statistics of single images on the wire: what comes back, and what makes no sense is refused on either side."""

from typing import Any

import numpy as np
import pytest
from refusals import refused

from fedshift_core.errors import FedShiftError
from fedshift_core.limits import Refused
from fedshift_core.site_differences import sentence
from fedshift_core.wire import image_styles
from fedshift_core.wire.image_styles import ImageStyles
from fedshift_core.wire.site_images import FederationImages, SiteImages
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


# --- statistics of sites ------------------------------------------------------------------------------

GRAY = (0.5, 0.5, 0.5)
NUMBERS = {"mean": GRAY, "variance": (0.04,) * 3, "image_std": (0.1,) * 3, "low": (0.2,) * 3, "high": (0.9,) * 3}
SITE = SiteImages(40, NUMBERS, ((0.25,) * 4,) * 3, {"640x480": 40}, {"RGB": 30, "L": 10})


def test_what_a_node_tells_comes_back() -> None:
    for site in (SITE, SiteImages(kept="few")):
        assert SiteImages.from_config(site.to_config(), 40, 4) == site
        assert site.reports is (site is SITE)
    for config in ({"statistics-kept": "because"}, {}):
        with refused(Refused, "statistics-kept" if config else "statistics"):
            SiteImages.from_config(config, 40, 4)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("images", 41),
        ("images", True),
        ("of/mean", [0.5, 0.5]),
        ("of/mean", [0.5, 0.5, float("nan")]),
        ("of/variance", [0.3, 0.0, 0.0]),
        ("of/low", [0.95, 0.1, 0.1]),
        ("of/histogram", [0.5] * 12),
        ("of/histogram", [0.25] * 11),
        ("sizes", ["a", "b"]),
        ("size-counts", [41]),
        ("modes", [1, 2]),
        ("kept", "few"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, value: Any) -> None:
    with refused(Refused):
        SiteImages.from_config({**SITE.to_config(), f"statistics-{name}": value}, 40, 4)


def test_means_and_variances_of_all_nodes() -> None:
    given = FederationImages.of([(0, 1, SITE), (3, 0, SITE), (4, 1, SITE)])
    again = FederationImages.from_arrays(given.to_arrays())
    assert (len(again), again.row_of(3), again.row_of(2), again.rows_of(1).tolist()) == (3, 1, None, [0, 2])
    np.testing.assert_array_equal(again.mean, np.full((3, 3), 0.5))
    for name, array in (
        ("nodes", np.array([0, 0, 4])),
        ("mean", np.full((3, 3), 1.5)),
        ("mean", np.full((3, 2), 0.5)),
        ("variance", np.full((3, 3), np.nan)),
        ("domains", np.zeros(3)),
    ):
        with refused(FedShiftError, "site-statistics"):
            FederationImages.from_arrays({**given.to_arrays(), name: array})


def test_sites_differ_by_means_in_standard_deviations_or_by_contrast() -> None:
    even, flat = (GRAY, (0.04,) * 3), (GRAY, (0.04, 0.04, 0.01))
    near, far = ((0.59, 0.5, 0.5), (0.04,) * 3), ((0.5, 0.7, 0.5), (0.04,) * 3)  # 0.45 and 1 standard deviations
    constant = ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0))
    for alike in ({"a": even}, {"a": even, "b": near}, {"a": constant, "b": constant}):
        assert sentence(alike) == ""
    text = sentence({"a": even, "b": near, "c": far})
    assert "a and c" in text and "green 0.50 and 0.70, 1.0 " in text and "1 more of 3" in text
    assert "blue 0.20 and 0.10, 2.0 times" in sentence({"a": even, "b": flat})
    assert "mean 0.20 and 0.60, 2.0 " in sentence({"a": ((0.2,) * 3, (0.04,) * 3), "b": ((0.6,) * 3, (0.04,) * 3)})
