"""FedSeProto strategy [Lai et al., 2024].

Paper: "FedSeProto: Learning Semantic Prototype in Federated Learning", Yanyi Lai, Lele Fu, Tianchi Liao,
Chuan Chen, Zibin Zheng; ECAI 2024, https://doi.org/10.3233/FAIA240731 (equations 3 and 16).
Reference code: none published.

Symbols: c_n^k semantic prototype of node n and class k, c_g^k their mean over the nodes that hold k.
Weights are averaged by number of images (Eq. 16), which is FedAvg's rule; where nodes have different
networks no weights travel, and the prototypes are all that is merged.
"""

from collections.abc import Mapping
from typing import ClassVar

from fedshift_core.params import Params
from fedshift_core.secure.layout import Sum
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.prototype_strategy import BY_NODES, PrototypeStrategy
from fedshift_strategies.methods.prototypes import mean_prototypes, one_per_class, stack_prototypes


class FedSeProtoStrategy(PrototypeStrategy):
    """Averages weights as FedAvg does, and the nodes' semantic prototypes class by class."""

    sends: ClassVar[tuple[str, ...]] = ("prototypes", "labels")

    @classmethod
    def sums(cls, params: Params) -> Mapping[str, Sum]:
        """Return that each node that holds a class counts the same."""
        return BY_NODES

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Average over the nodes of this round (Eq. 3); a class that none of them holds keeps its old prototype."""
        p, counts = stack_prototypes([update.knowledge for update in updates])  # N x C x D, N x C
        c_g, known = mean_prototypes(p, counts > 0)
        self.knowledge = one_per_class(c_g, known, self.knowledge)
