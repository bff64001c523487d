"""FedProto strategy [Tan et al., 2022].

Paper: "FedProto: Federated Prototype Learning across Heterogeneous Clients", Yue Tan, Guodong Long, Lu Liu,
Tianyi Zhou, Qinghua Lu, Jing Jiang, Chengqi Zhang; AAAI 2022, https://arxiv.org/abs/2105.00243.
Reference code: yuetan031/FedProto at commit cb3c41f (``lib/utils.py``, ``proto_aggregation``).

Symbols: p_n^k prototype of node n and class k, D_n^k its images of the class, G^k global prototype.

Deviations: (1) the paper's factor 1 / (number of nodes) before weights that sum to one is left out: it would
shrink all prototypes; (2) the code's plain mean is a switch (``prototype_mean``); (3) a class that no node of
a round holds keeps its prototype.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedshift_core.methods.fedproto import FedProtoParams
from fedshift_strategies.method import Arrays, Sum
from fedshift_strategies.methods.prototypes import (
    BY_IMAGES,
    BY_NODES,
    FloatArray,
    PrototypeStrategy,
    one_per_class,
    weighted_prototypes,
)


class FedProtoStrategy(PrototypeStrategy[FedProtoParams]):
    """Averages the nodes' class prototypes, and as FedAvg does whatever weights they share."""

    @classmethod
    def sums(cls, params: FedProtoParams) -> Mapping[str, Sum]:
        """Return that each image of a class counts the same, or each node that holds it."""
        return BY_IMAGES if params.prototype_mean == "weighted" else BY_NODES

    def merge_prototypes(self, p: FloatArray, counts: NDArray[np.int64]) -> Arrays:
        """Average over the nodes of this round that hold a class."""
        if self.params.prototype_mean == "plain":
            return super().merge_prototypes(p, counts)
        return one_per_class(*weighted_prototypes(p, counts), self.knowledge)
