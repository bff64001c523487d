"""Means and deviations of the channels of single images, which a node tells of some of its own once.

A node tells rows of six numbers (``SiteImages.styles``). Those of all nodes go to each (:class:`ImageStyles`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_core.limits import MOST_STYLES, Refused
from fedshift_core.wire import names as wire
from fedshift_core.wire.rows import Rows

ROW = 6  # three means, three deviations
#: A mean, and a deviation, of numbers from 0 to 1 (divisor: pixels - 1; an image has two pixels or more).
_MOST = (1.0, 1.0, 1.0, 0.75, 0.75, 0.75)
_SLACK = 1e-6

Styles = tuple[tuple[float, ...], ...]


def read(given: Mapping[str, Any], images: int) -> Styles:
    """Return the rows of an answer; none where it has none.

    Args:
        given: The record ``config`` of the answer.
        images: Training images behind the answer.

    Raises:
        Refused: If they are not rows of numbers in range, of no more images than there are.
    """
    values = given.get(wire.STATISTICS_STYLES, [])
    most = min(images, MOST_STYLES)
    if not isinstance(values, list) or len(values) % ROW or len(values) > ROW * most:
        raise Refused(f"{wire.STATISTICS_STYLES} has not {ROW} numbers of each of at most {most} images")
    if not all(type(value) is float and 0 <= value <= _MOST[i % ROW] + _SLACK for i, value in enumerate(values)):
        raise Refused(f"{wire.STATISTICS_STYLES}: means are from 0 to 1, deviations from 0 to 0.75")
    return tuple(tuple(values[start : start + ROW]) for start in range(0, len(values), ROW))


@dataclass(frozen=True)
class ImageStyles(Rows):
    """Means and deviations of M training images of all nodes; red, green, blue from 0 to 1.

    Attributes:
        nodes: Place in the federation of each image's node, (M,), int64, not falling.
        mean: (M, 3), float32.
        std: Over an image's pixels (divisor: pixels - 1), (M, 3), float32.
    """

    record, kind, slack, apart = wire.IMAGE_STYLES, np.float32, _SLACK, False

    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    @classmethod
    def of(cls, reports: Sequence[tuple[int, Styles]]) -> "ImageStyles":
        """Return those of nodes by their place, of which at least one tells a row."""
        nodes = np.array([node for node, each in reports for _ in each], np.int64)
        values = np.array([row for _, each in reports for row in each], np.float32).reshape(-1, ROW)
        return cls(nodes, values[:, :3].copy(), values[:, 3:].copy())

    def of_others(self, node: int) -> "ImageStyles":
        """Return those of the images of all other nodes."""
        other = self.nodes != node
        return ImageStyles(self.nodes[other], self.mean[other], self.std[other])
