"""FPL strategy [Huang et al., 2023].

Paper: "Rethinking Federated Learning with Domain Shift: A Prototype View", Wenke Huang, Mang Ye, Zekun Shi,
He Li, Bo Du; CVPR 2023. Reference code: WenkeHuang/RethinkFL at commit 61275b6 (``models/fpl.py``,
``proto_aggregation``).

Symbols: p_n^k prototype of node n and class k, P^k the cluster prototypes of class k.

Deviation: a class that no node of a round holds keeps its clusters.
"""

from typing import ClassVar

from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.prototype_strategy import PrototypeStrategy
from fedshift_strategies.methods.prototypes import cluster_prototypes, keep_absent_classes, stack_prototypes


class FPLStrategy(PrototypeStrategy):
    """Averages weights as FedAvg does; clusters the nodes' prototypes of each class by FINCH."""

    sends: ClassVar[tuple[str, ...]] = ("prototypes", "labels")

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Turn the prototypes of each class into the means of its clusters; the nodes average those to U."""
        p, counts = stack_prototypes([update.knowledge for update in updates])  # N x C x D, N x C
        self.knowledge = keep_absent_classes(*cluster_prototypes(p, counts > 0), self.knowledge)
