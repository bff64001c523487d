"""Clusters of vectors by FINCH (Sarfraz et al., CVPR 2019), as server and nodes find them."""

import warnings
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Partition = Literal["last", "first"]


def finch_groups(
    points: NDArray[Any], partition: Partition = "last", *, early_exit: bool = True
) -> list[NDArray[np.int64]]:
    """Return the members of each cluster of points (N, D) by FINCH with cosine distance.

    All points are compared with each other: the memory that it takes grows with N².

    Args:
        points: What to cluster.
        partition: FINCH's last and coarsest partition, or its first and finest.
        early_exit: Whether later partitions join only what is no farther apart than neighbours of the first are, as
            the package means to by default. With finch-clust 0.2 it makes no difference: what it takes away becomes
            an explicit zero, which SciPy counts as a neighbour all the same.
    """
    if len(points) < 3:  # FINCH puts one or two points into one cluster
        return [np.arange(len(points))] if len(points) else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a package is missing which only 10,000 points and more need
        from finch import FINCH  # type: ignore[import-untyped]

    labels = FINCH(points, distance="cosine", ensure_early_exit=early_exit, verbose=False)[0]
    labels = labels[:, -1 if partition == "last" else 0]
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]
