"""Arrays of a record as they are expected, and records with a row for each node, or for each image of a node."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedshift_core.arrays import Arrays
from fedshift_core.errors import FedShiftError
from fedshift_core.limits import MOST_NAME, plain

_PLACES = ("nodes", "domains")


def unlike(arrays: Arrays, wanted: Mapping[str, tuple[tuple[int, ...], Any]]) -> str:
    """Return how arrays differ from the names, with shapes and types, that are expected; empty where they do not."""
    if strange := sorted(arrays.keys() ^ wanted.keys()):
        return f"{plain(strange[0], MOST_NAME)!r} is {'unknown' if strange[0] in arrays else 'missing'}"
    for name, (shape, kind) in wanted.items():
        array = arrays[name]
        if array.shape != shape or array.dtype != kind:
            return f"{name} has shape {array.shape} and type {array.dtype}, expected {shape} and {np.dtype(kind)}"
    return ""


@dataclass(frozen=True)
class Rows:
    """A record that a server sends, of N rows.

    Attributes:
        record: Its name.
        kind: Type of its values, (N, 3), from 0 to 1; places are int64, (N,).
        slack: What a value may be above 1, by rounding.
        apart: Each row is of another node.
        nodes: Place in the federation of each row's node, not falling.
    """

    record: ClassVar[str]
    kind: ClassVar[type[Any]]
    slack: ClassVar[float]
    apart: ClassVar[bool]

    nodes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.nodes)

    def to_arrays(self) -> Arrays:
        """Return the arrays of the record that goes to the nodes."""
        return dict(vars(self))

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Read the record on a node.

        Raises:
            FedShiftError: If an array, its shape, type or a number is not what it should be.
        """
        n = arrays["nodes"].size if "nodes" in arrays else 0
        wanted = {each.name: ((n,), np.int64) if each.name in _PLACES else ((n, 3), cls.kind) for each in fields(cls)}
        why = unlike(arrays, wanted)
        for name, array in arrays.items() if not why else ():
            most = math.inf if name in _PLACES else 1 + cls.slack
            if not ((array >= 0) & (array <= most)).all():
                why = f"{name} is out of range"
        if not why and (np.diff(arrays["nodes"]) < cls.apart).any():
            why = "its nodes do not rise" if cls.apart else "its nodes fall"
        if why:
            raise FedShiftError(f"the server's record {cls.record}: {why}")
        return cls(**arrays)
