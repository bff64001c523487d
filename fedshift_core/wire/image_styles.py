"""Means and deviations of the channels of single images, which a node tells of some of its own once.

A node tells rows of six numbers (``SiteImages.styles``). Those of all nodes go to each (:class:`ImageStyles`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_core.arrays import Arrays
from fedshift_core.errors import FedShiftError
from fedshift_core.limits import MOST_STYLES, Refused
from fedshift_core.plural import plural
from fedshift_core.wire import names as wire
from fedshift_core.wire import rows

ROW = 6  # three means, three deviations
#: A mean, and a deviation, of numbers from 0 to 1 (divisor: pixels - 1; an image has two pixels or more).
_MOST = (1.0, 1.0, 1.0, 0.75, 0.75, 0.75)
_SLACK = 1e-6
_ARRAYS = ("nodes", "mean", "std")

Rows = tuple[tuple[float, ...], ...]


def read(given: Mapping[str, Any], images: int) -> Rows:
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
        raise Refused(f"{wire.STATISTICS_STYLES} has not {ROW} numbers of each of at most {plural(most, 'image')}")
    read_rows = tuple(tuple(values[start : start + ROW]) for start in range(0, len(values), ROW))
    if not all(_in_range(value, top) for row in read_rows for value, top in zip(row, _MOST, strict=True)):
        raise Refused(f"{wire.STATISTICS_STYLES}: means are from 0 to 1, deviations from 0 to 0.75")
    return read_rows


def _in_range(value: object, most: float) -> bool:
    return type(value) is float and math.isfinite(value) and 0 <= value <= most + _SLACK


@dataclass(frozen=True)
class ImageStyles:
    """Means and deviations of M training images of all nodes; red, green, blue from 0 to 1.

    Attributes:
        nodes: Place in the federation of each image's node, (M,), int64, not falling.
        mean: (M, 3), float32.
        std: Over an image's pixels (divisor: pixels - 1), (M, 3), float32.
    """

    nodes: NDArray[np.int64]
    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.nodes)

    @classmethod
    def of(cls, reports: Sequence[tuple[int, Rows]]) -> "ImageStyles":
        """Return those of nodes by their place, of which at least one tells a row."""
        nodes = np.repeat(
            np.array([node for node, _ in reports], np.int64), np.array([len(each) for _, each in reports], np.int64)
        )
        values = np.array([row for _, each in reports for row in each], np.float32).reshape(-1, ROW)
        return cls(nodes, values[:, :3].copy(), values[:, 3:].copy())

    def to_arrays(self) -> Arrays:
        """Return the arrays of the record that goes to the nodes."""
        return {name: getattr(self, name) for name in _ARRAYS}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "ImageStyles":
        """Read the record on a node.

        Raises:
            FedShiftError: If an array, its shape, type or a number is not what it should be.
        """
        rows.check(wire.IMAGE_STYLES, arrays, ("nodes",), ("mean", "std"), "float32", _SLACK)
        if (np.diff(arrays["nodes"]) < 0).any():
            raise FedShiftError(f"the server's record {wire.IMAGE_STYLES}: its nodes fall")
        return cls(*(arrays[name] for name in _ARRAYS))

    def of_others(self, node: int) -> "ImageStyles":
        """Return those of the images of all other nodes."""
        other = self.nodes != node
        return ImageStyles(self.nodes[other], self.mean[other], self.std[other])
