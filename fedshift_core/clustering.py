"""Clusters vectors by FINCH (Sarfraz et al., CVPR 2019), for server and nodes."""

import warnings
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Partition = Literal["last", "first"]
MOST_CLUSTERS = 1000  # of a class that a node may tell of: FINCH's last partition of 5,000 points has some ten


def finch_groups(
    points: NDArray[Any], partition: Partition = "last", *, early_exit: bool = True
) -> list[NDArray[np.int64]]:
    """Return the members of each cluster of points (N, D) by FINCH with cosine distance.

    It compares all points with each other, so its memory grows with N².

    Args:
        points: The points to cluster.
        partition: FINCH's last and coarsest partition, or its first and finest.
        early_exit: Whether later partitions join only points that are no farther apart than neighbours of the first,
            the package's intended default. With finch-clust 0.2 it makes no difference: a removed pair becomes an
            explicit zero, which SciPy still counts as a neighbour.
    """
    if len(points) < 3:  # FINCH puts one or two points into one cluster
        return [np.arange(len(points))] if len(points) else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a missing package that only 10,000 points and more need
        from finch import FINCH  # type: ignore[import-untyped]

    labels = FINCH(points, distance="cosine", ensure_early_exit=early_exit, verbose=False)[0]
    labels = labels[:, -1 if partition == "last" else 0]
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]
