"""Statistics of images on the wire: what makes no sense is refused on either side; which sites differ clearly."""

from typing import Any

import numpy as np
import pytest

from fedshift_core import site_differences
from fedshift_core.errors import FedShiftError
from fedshift_core.limits import Refused
from fedshift_core.wire.site_images import FederationImages, SiteImages

GRAY = (0.5, 0.5, 0.5)
NUMBERS = {"mean": GRAY, "variance": (0.04,) * 3, "image_std": (0.1,) * 3, "low": (0.2,) * 3, "high": (0.9,) * 3}
SITE = SiteImages(40, NUMBERS, ((0.25,) * 4,) * 3, {"640x480": 40}, {"RGB": 30, "L": 10})


def test_what_a_node_tells_comes_back() -> None:
    assert SiteImages.from_config(SITE.to_config(), 40, 4) == SITE
    few = SiteImages(kept="few")
    assert SiteImages.from_config(few.to_config(), 40, 4) == few
    assert not few.reports


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("statistics-images", 41, "from 1 to 40"),
        ("statistics-images", True, "from 1 to 40"),
        ("statistics-of/mean", [0.5, 0.5], "mean is not 3 numbers from 0 to 1"),
        ("statistics-of/mean", [0.5, 0.5, float("nan")], "mean is not 3 numbers"),
        ("statistics-of/variance", [0.3, 0.0, 0.0], "variance is not 3 numbers from 0 to 0.25"),
        ("statistics-of/low", [0.95, 0.1, 0.1], "5th percentile lies above"),
        ("statistics-of/histogram", [0.5] * 12, "do not sum to 1"),
        ("statistics-of/histogram", [0.25] * 11, "histogram is not 12 numbers"),
        ("statistics-sizes", ["a", "b"], "one number each"),
        ("statistics-size-counts", [41], "sum to 40 images at most"),
        ("statistics-modes", [1, 2], "one number each"),
        ("statistics-kept", "few", "'statistics-kept' is missing or unknown"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, value: Any, why: str) -> None:
    with pytest.raises(Refused, match=why):
        SiteImages.from_config({**SITE.to_config(), name: value}, 40, 4)
    with pytest.raises(Refused, match="neither policy nor few"):
        SiteImages.from_config({"statistics-kept": "because"}, 40, 4)
    with pytest.raises(Refused, match="missing or unknown"):
        SiteImages.from_config({}, 40, 4)


def test_means_and_variances_of_all_nodes() -> None:
    given = FederationImages.of([(0, 1, SITE), (3, 0, SITE), (4, 1, SITE)])
    again = FederationImages.from_arrays(given.to_arrays())
    assert len(again) == 3
    assert again.row_of(3) == 1
    assert again.row_of(2) is None
    assert again.rows_of(1).tolist() == [0, 2]
    np.testing.assert_array_equal(again.mean, np.full((3, 3), 0.5))
    for name, array in (
        ("nodes", np.array([0, 0, 4])), ("mean", np.full((3, 3), 1.5)), ("mean", np.full((3, 2), 0.5)),
        ("variance", np.full((3, 3), np.nan)), ("domains", np.zeros(3)),
    ):  # fmt: skip
        with pytest.raises(FedShiftError, match="site-statistics"):
            FederationImages.from_arrays({**given.to_arrays(), name: array})


def test_sites_differ_by_means_in_standard_deviations_or_by_contrast() -> None:
    even = (GRAY, (0.04,) * 3)
    assert site_differences.sentence({"a": even, "b": even}) == ""
    assert site_differences.sentence({"a": even}) == ""
    near, far = ((0.59, 0.5, 0.5), (0.04,) * 3), ((0.5, 0.7, 0.5), (0.04,) * 3)  # 0.45 and 1 standard deviations
    assert site_differences.sentence({"a": even, "b": near}) == ""
    text = site_differences.sentence({"a": even, "b": near, "c": far})
    assert text.startswith(
        "images of a and c differ clearly: mean of green 0.50 and 0.70, 1.0 standard deviations apart; 1 more of 3 "
        "pairs do (the rule: "
    )
    flat = (GRAY, (0.04, 0.04, 0.01))
    assert "standard deviation of blue 0.20 and 0.10, 2.0 times" in site_differences.sentence({"a": even, "b": flat})
    grey = {"a": ((0.2,) * 3, (0.04,) * 3), "b": ((0.6,) * 3, (0.04,) * 3)}
    assert "clearly: mean 0.20 and 0.60, 2.0 standard deviations apart" in site_differences.sentence(grey)
    constant = ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0))
    assert site_differences.sentence({"a": constant, "b": constant}) == ""
