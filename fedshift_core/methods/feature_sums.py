"""Sums of frozen features that nodes tell once, as whole numbers, and the parameters of heads that are solved of them.

A feature f counts as rint(f / STEP), a whole number; so products are whole numbers of UNIT, and sums of them are exact
in float64 and in any order. The head of a federation does not depend on who holds which image, to the bit, nor on the
machine that adds; and a node that withdraws can be subtracted without a trace.
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from fedshift_core.errors import RequestError
from fedshift_core.limits import LARGEST_INTEGER
from fedshift_core.params import Params

STEP = 2.0**-14  # of a feature
UNIT = STEP**2  # of a number that travels; sums are below 2^53 of them, some 3e7
COUNTS, GRAM, CROSS = "counts", "gram", "cross"
RIDGES = tuple(10.0**power for power in range(-3, 4))  # the grid of lambda


class Fed3RParams(Params):
    """Parameters of Fed3R."""

    ridge: float | Literal["validation"] = 0.3
    """Lambda of the ridge regression, as a multiple of the mean variance sum of a feature; validation: that of a grid
    from 0.001 to 1000 with which most validation images are right, in a second round.
    """
    personal: float | None = Field(None, gt=0, le=1e9)
    """Rho of a head of each node's own, which is scored in the place of the shared one: the ridge regression of the
    node's own images toward the shared head. A multiple of a feature's mean square sum; null: no such head.
    """

    @field_validator("ridge")
    @classmethod
    def _is_above_0(cls, ridge: float | str) -> float | str:
        if isinstance(ridge, float) and not 0 < ridge < math.inf:
            raise ValueError("Input should be a number above 0, or validation")
        return ridge


class FedCGSParams(Params):
    """Parameters of FedCGS."""

    shrinkage: float = Field(1e-3, ge=0, le=1)
    """Share of the mean variance that is added to the diagonal of the pooled covariance."""


def to_whole(units: NDArray[np.float64], name: str) -> NDArray[np.int64]:
    """Return whole numbers of UNIT as integers.

    Raises:
        RequestError: If one is not finite, or so large that it may not be exact.
    """
    if not (np.abs(units) <= LARGEST_INTEGER).all():
        most = LARGEST_INTEGER * UNIT
        raise RequestError(f"{name} holds {np.abs(units).max() * UNIT:.3g}; a sum of features is {most:.3g} at most")
    return units.astype(np.int64)


def packed(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the upper half (F(F+1)/2,) of a symmetric matrix (F, F), row by row."""
    return gram[np.triu_indices(len(gram))]


def unpacked(half: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Return the symmetric matrix (F, F) of its upper half."""
    gram = np.zeros((width, width))
    gram[np.triu_indices(width)] = half
    return gram + np.triu(gram, 1).T
