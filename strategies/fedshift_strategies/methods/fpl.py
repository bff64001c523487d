"""FPL strategy [Huang et al., 2023].

Paper: "Rethinking Federated Learning with Domain Shift: A Prototype View", Wenke Huang, Mang Ye, Zekun Shi,
He Li, Bo Du; CVPR 2023. Reference code: WenkeHuang/RethinkFL at commit 61275b6 (``models/fpl.py``,
``proto_aggregation``).

Symbols: p_n^k prototype of node n and class k, P^k the cluster prototypes of class k.

Deviation: a class that no node of a round holds keeps its clusters.
"""

import numpy as np
from numpy.typing import NDArray

from fedshift_core.arrays import Arrays
from fedshift_strategies.methods.prototypes import (
    FloatArray,
    PrototypeStrategy,
    cluster_means,
    keep_absent_classes,
    uploaded,
)


class FPLStrategy(PrototypeStrategy):
    """Averages weights as FedAvg does; clusters the nodes' prototypes of each class by FINCH."""

    def merge_prototypes(self, p: FloatArray, counts: NDArray[np.int64]) -> Arrays:
        """Turn the prototypes of each class into the means of its clusters; the nodes average those to U."""
        return keep_absent_classes(*cluster_means(*uploaded(p, counts)), self.knowledge)
