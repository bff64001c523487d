"""FINCH's partitions by their definition, with cosine distance, point by point."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def slow_finch(points: list[NDArray[Any]], *, first: bool = False) -> list[set[int]]:
    """Join first neighbours, then those of the clusters' means and so on (no early exit); or the ``first`` alone."""

    def joined(means: list[NDArray[Any]]) -> list[set[int]]:
        unit = [m / np.linalg.norm(m) for m in means]
        groups = [{i} for i in range(len(means))]
        for i in range(len(means)):
            near = max((j for j in range(len(means)) if j != i), key=lambda j: float(unit[i] @ unit[j]))
            both = [g for g in groups if g & {i, near}]
            groups = [g for g in groups if g not in both] + [set().union(*both)]
        return groups

    result = joined(points)
    while len(result) > 1 and not first:
        above = joined([np.mean([points[i] for i in sorted(g)], axis=0) for g in result])
        fewer = len(result) - len(above)
        if len(above) == 1 or not fewer:
            break
        result = [set().union(*(result[i] for i in g)) for g in above]
        if fewer == 1:
            break
    return result
