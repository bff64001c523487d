"""Records whose arrays have a row for each node, or for each image of a node."""

import math
from collections.abc import Sequence

from fedshift_core.arrays import Arrays
from fedshift_core.errors import FedShiftError


def check(record: str, arrays: Arrays, places: Sequence[str], values: Sequence[str], kind: str, slack: float) -> None:
    """Check the arrays of a server's record of N rows; one of them is ``nodes``.

    Args:
        record: Its name.
        arrays: The arrays.
        places: Names of arrays (N,), int64, not negative.
        values: Names of arrays (N, 3) of numbers from 0 to 1.
        kind: Type of these.
        slack: What they may be above 1, by rounding.

    Raises:
        FedShiftError: If an array, its shape, type or a number is not what it should be.
    """
    if set(arrays) != {*places, *values} or arrays["nodes"].ndim != 1:
        raise FedShiftError(f"the server's record {record} has not the arrays that it should have")
    count = len(arrays["nodes"])
    for name, array in arrays.items():
        shape, dtype, most = ((count,), "int64", math.inf) if name in places else ((count, 3), kind, 1.0)
        if array.shape != shape or array.dtype != dtype or not ((array >= 0) & (array <= most + slack)).all():
            raise FedShiftError(f"the server's record {record}: {name} is not {shape} of {dtype} in range")
