"""Statistics of the nodes' training images on the wire: what one node tells once, and what all are sent of it.

A node tells means, variances, percentiles and a histogram of each channel, and sizes and modes of its files
(:class:`SiteImages`). Of all nodes, means and variances may go to each (:class:`FederationImages`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_core.arrays import Floats
from fedshift_core.limits import LARGEST_COUNT, MOST_NAME, Refused, plain, whole
from fedshift_core.wire import image_styles, rows
from fedshift_core.wire import names as wire

POLICY, FEW = "policy", "few"  # why a node tells nothing
NUMBERS = ("mean", "variance", "image_std", "low", "high")  # (3,) each, from 0 to 1
HISTOGRAM = "histogram"
MOST_KINDS = 16  # sizes, and modes, that a node names
#: Largest variance, and standard deviation within an image, of numbers from 0 to 1; an image has two pixels or more.
_MOST = {"variance": 0.25, "image_std": 0.75}
_SLACK = 1e-9
_OF_ALL = ("mean", "variance", "image_std")


@dataclass(frozen=True)
class SiteImages:
    """What a node tells of its training images.

    Attributes:
        images: How many are behind it; 0 where it tells nothing.
        numbers: By name of ``NUMBERS``: red, green and blue.
        histogram: Shares of the pixels in equal bins, three rows.
        sizes: Images by size of their file, ``640x480``; empty where there are no image files.
        modes: Images by mode of their file, such as ``RGB``.
        kept: Why it tells nothing: ``policy``, ``few``, or an error; empty where it tells.
        styles: Of some of its images, one by one, three means and three deviations; empty for none.
    """

    images: int = 0
    numbers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    histogram: tuple[tuple[float, ...], ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)
    kept: str = ""
    styles: image_styles.Styles = ()

    @property
    def reports(self) -> bool:
        """Whether the node tells anything."""
        return not self.kept

    def to_config(self) -> dict[str, Any]:
        """Return the entries of the record ``config`` of an answer."""
        if self.kept:
            return {wire.STATISTICS_KEPT: self.kept}
        return {
            wire.STATISTICS_IMAGES: self.images,
            **{wire.STATISTICS_OF + name: list(self.numbers[name]) for name in NUMBERS},
            wire.STATISTICS_OF + HISTOGRAM: [share for row in self.histogram for share in row],
            wire.STATISTICS_SIZES: list(self.sizes),
            wire.STATISTICS_SIZE_COUNTS: list(self.sizes.values()),
            wire.STATISTICS_MODES: list(self.modes),
            wire.STATISTICS_MODE_COUNTS: list(self.modes.values()),
            **({wire.STATISTICS_STYLES: [value for row in self.styles for value in row]} if self.styles else {}),
        }

    @classmethod
    def from_config(cls, given: Mapping[str, Any], announced: int, bins: int) -> "SiteImages":
        """Read the entries of an answer.

        Args:
            given: The record.
            announced: Training images that the node said it has.
            bins: Of a histogram, for each channel.

        Raises:
            Refused: If a name, a type or a number is not what it should be.
        """
        if set(given) == {wire.STATISTICS_KEPT}:
            if given[wire.STATISTICS_KEPT] not in (POLICY, FEW):
                raise Refused(f"{wire.STATISTICS_KEPT} is neither {POLICY} nor {FEW}")
            return cls(kept=str(given[wire.STATISTICS_KEPT]))
        if strange := sorted((set(given) - {wire.STATISTICS_STYLES}) ^ _NAMES):
            raise Refused(f"statistics of images: {plain(strange[0], MOST_NAME)!r} is missing or unknown")
        images = whole(given[wire.STATISTICS_IMAGES], 1, min(announced, LARGEST_COUNT))
        if images is None:
            raise Refused(f"{wire.STATISTICS_IMAGES} is not a whole number from 1 to {announced}, the images announced")
        numbers = {name: _row(given, name, 3, _MOST.get(name, 1.0)) for name in NUMBERS}
        if any(low > high for low, high in zip(numbers["low"], numbers["high"], strict=True)):
            raise Refused("statistics of images: a 5th percentile lies above the 95th")
        shares = _row(given, HISTOGRAM, 3 * bins, 1.0)
        histogram = tuple(shares[start : start + bins] for start in range(0, 3 * bins, bins))
        if any(abs(sum(row) - 1) > 0.01 for row in histogram):
            raise Refused("statistics of images: the shares of a histogram do not sum to 1")
        sizes, modes = (_kinds(given, name, number, images) for name, number in _KINDS)
        return cls(images, numbers, histogram, sizes, modes, styles=image_styles.read(given, images))


_KINDS = ((wire.STATISTICS_SIZES, wire.STATISTICS_SIZE_COUNTS), (wire.STATISTICS_MODES, wire.STATISTICS_MODE_COUNTS))
_NAMES = {wire.STATISTICS_IMAGES, *sum(_KINDS, ()), *(wire.STATISTICS_OF + name for name in (*NUMBERS, HISTOGRAM))}


def _row(given: Mapping[str, Any], name: str, length: int, most: float) -> tuple[float, ...]:
    values = given[wire.STATISTICS_OF + name]
    fits = isinstance(values, list) and len(values) == length
    if not fits or not all(type(value) is float and 0 <= value <= most + _SLACK for value in values):
        raise Refused(f"statistics of images: {name} is not {length} numbers from 0 to {most:g}")
    return tuple(values)


def _kinds(given: Mapping[str, Any], names: str, counts: str, images: int) -> dict[str, int]:
    said, numbers = given[names], given[counts]
    fits = isinstance(said, list) and isinstance(numbers, list) and len(said) == len(numbers) <= MOST_KINDS + 1
    if not fits or not all(isinstance(name, str) and 0 < len(name) <= MOST_NAME for name in said):
        raise Refused(f"{names} is not a list of at most {MOST_KINDS + 1} words with one number each")
    if any(whole(number, 1, images) is None for number in numbers) or sum(numbers) > images:
        raise Refused(f"{counts} are not whole numbers that sum to {images} images at most")
    return {plain(name, MOST_NAME): int(number) for name, number in zip(said, numbers, strict=True)}


@dataclass(frozen=True)
class FederationImages(rows.Rows):
    """Means and variances of the pixels of K nodes' training images; red, green, blue from 0 to 1.

    Attributes:
        nodes: Place of each node in the order of the federation, rising, (K,), int64.
        domains: Place of its domain among the run's, (K,), int64.
        mean: (K, 3), float64.
        variance: Of all its pixels, (K, 3), float64.
        image_std: Mean over its images of the standard deviation within each, (K, 3), float64.
    """

    record, kind, slack, apart = wire.SITE_IMAGES, np.float64, _SLACK, True

    domains: NDArray[np.int64]
    mean: Floats
    variance: Floats
    image_std: Floats

    @classmethod
    def of(cls, reports: Sequence[tuple[int, int, SiteImages]]) -> "FederationImages":
        """Return those of nodes that tell theirs: place, place of the domain, and what it tells, of each."""
        nodes, domains = (np.array([entry[i] for entry in reports], np.int64) for i in range(2))
        return cls(
            nodes,
            domains,
            *(np.array([site.numbers[name] for _, _, site in reports], np.float64).reshape(-1, 3) for name in _OF_ALL),
        )

    def row_of(self, node: int) -> int | None:
        """Return the row of a node by its place in the federation; None if it tells nothing."""
        places = np.flatnonzero(self.nodes == node)
        return int(places[0]) if len(places) else None

    def rows_of(self, domain: int) -> NDArray[np.int64]:
        """Return the rows of the nodes of a domain, by its place among the run's."""
        return np.flatnonzero(self.domains == domain)
