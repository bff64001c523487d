r"""Statements of the nodes of a secure sum about their images, and whether a sum over such nodes hides each.

A statement is what a node announced before round 1: how many training images it has, and of which classes. The node
signs it with the keys of each sum, and all nodes of the sum get all statements. So each works out itself by what
numbers are multiplied and which classes are summed, and nobody chooses either.

Of weights f the effective number of nodes is :math:`(\sum f)^2/\sum f^2` (Kish): n of n nodes that weigh the same, 1
where one weighs all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedshift_core.errors import RequestError
from fedshift_core.plural import plural

#: Least nodes that hold a class whose rows are summed: of one node the sum is its row, of two each knows the other's.
LEAST_HOLDERS = 3
_SLACK = 0.01  # of the effective number, as a share: 360, 359 and 359 images are three nodes
_IMAGES_BYTES = 8


@dataclass(frozen=True)
class Statement:
    """What a node states.

    Attributes:
        images: Its training images, as announced before round 1.
        classes: Of each class, whether it contributes rows of it.
    """

    images: int
    classes: tuple[bool, ...]

    @classmethod
    def of(cls, images: int, counts: Sequence[int]) -> Self:
        """Return the statement of a node that announces so many images, and these by class; (C,)."""
        return cls(images, tuple(number > 0 for number in counts))

    def written(self) -> bytes:
        """Return the statement as it is signed and travels."""
        return self.images.to_bytes(_IMAGES_BYTES, "big") + np.packbits(np.array(self.classes, bool)).tobytes()

    @classmethod
    def read(cls, data: bytes, classes: int) -> Self:
        """Return what :meth:`written` was given, of so many classes.

        Raises:
            RequestError: If it is no statement of them.
        """
        if len(data) != num_bytes(classes):
            raise RequestError(f"refused: a statement of {plural(len(data), 'byte')}, expected {num_bytes(classes)}")
        bits = np.unpackbits(np.frombuffer(data[_IMAGES_BYTES:], np.uint8))[:classes]
        read = cls(int.from_bytes(data[:_IMAGES_BYTES], "big"), tuple(bits.astype(bool).tolist()))
        if read.written() != data:
            raise RequestError(f"refused: a statement about other than the run's {plural(classes, 'class', 'classes')}")
        return read


def num_bytes(classes: int) -> int:
    """Return the length of a statement."""
    return _IMAGES_BYTES + (classes + 7) // 8


def largest(statements: Sequence[Statement]) -> int:
    """Return the largest number of images that one of these nodes states."""
    return max(statement.images for statement in statements)


def effective(factors: Sequence[float]) -> float:
    """Return the effective number of nodes that weigh so much, above 0."""
    return sum(factors) ** 2 / sum(factor**2 for factor in factors)


def check_effective(factors: Sequence[float], least: float) -> None:
    """Refuse weights by which too few nodes hide each other.

    Raises:
        RequestError: With the number found.
    """
    found = effective(factors)
    if found < least * (1 - _SLACK):
        raise RequestError(
            f"refused: by their weights the {plural(len(factors), 'node')} of a sum hide each other as "
            f"{found:.7g} equal ones would, {least:g} are needed (federation.secure_sums_least)"
        )


def holders(statements: Sequence[Statement]) -> NDArray[np.int64]:
    """Return how many of these nodes hold each class, (C,)."""
    return np.asarray(np.sum([statement.classes for statement in statements], axis=0, dtype=np.int64))


def summed(statements: Sequence[Statement]) -> NDArray[np.bool_]:
    """Return of which classes a sum over these nodes has rows, (C,)."""
    return np.asarray(holders(statements) >= LEAST_HOLDERS)


def check_rows(group: Sequence[Statement], arrived: Sequence[Statement]) -> None:
    """Refuse a sum of rows by class in which too few nodes hold a class once some of the group are lost.

    Raises:
        RequestError: With the class.
    """
    left = holders(arrived)
    if few := np.flatnonzero(summed(group) & (left > 0) & (left < LEAST_HOLDERS)).tolist():
        raise RequestError(
            f"refused: class {few[0]} of the sum is held by {plural(int(left[few[0]]), 'node')} of those that arrived, "
            f"{LEAST_HOLDERS} must hide each other"
        )
