"""FedMLP strategy [Guo et al., 2024], an approximation.

Paper: "Dynamic Heterogeneous Federated Learning with Multi-Level Prototypes", Shunxin Guo, Hongsong Wang, Xin Geng;
Pattern Recognition 153 (2024) 110542, https://arxiv.org/abs/2312.09881. Reference code: none found. Of the paper only
the abstract could be had: how the server merges prototypes is a choice.

Symbols: p_n^k prototype of node n and class k, P^k global prototype.
"""

from collections.abc import Mapping
from typing import ClassVar

from fedshift_core.params import Params
from fedshift_core.secure.layout import Sum
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.prototype_strategy import BY_NODES, PrototypeStrategy
from fedshift_strategies.methods.prototypes import mean_prototypes, one_per_class, stack_prototypes


class FedMLPStrategy(PrototypeStrategy):
    """Averages weights as FedAvg does; P^k is the plain mean over the nodes that hold class k."""

    sends: ClassVar[tuple[str, ...]] = ("prototypes", "labels")

    @classmethod
    def sums(cls, params: Params) -> Mapping[str, Sum]:
        """Return that each node that holds a class counts the same."""
        return BY_NODES

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Average over the nodes of this round that hold a class; one that none holds keeps its prototype."""
        p, counts = stack_prototypes([update.knowledge for update in updates])  # N x C x D, N x C
        self.knowledge = one_per_class(*mean_prototypes(p, counts > 0), self.knowledge)
