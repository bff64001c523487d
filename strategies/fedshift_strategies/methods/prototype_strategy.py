"""Shared by strategies whose nodes contribute class prototypes (C, D) and images per class (C,)."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedshift_core.arrays import Arrays
from fedshift_core.params import P
from fedshift_core.secure.layout import Sum
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.prototypes import (
    PROTOTYPES,
    FloatArray,
    mean_prototypes,
    one_per_class,
    stack_prototypes,
)

#: Of class prototypes, how they are sums over nodes (``DomainStrategy.sums``): each image counts the same, or each node
#: that holds the class.
BY_IMAGES: Mapping[str, Sum] = {"prototypes": "images", "counts": "images"}
BY_NODES: Mapping[str, Sum] = {"prototypes": "nodes", "counts": "nodes"}


class PrototypeStrategy(DomainStrategy[P]):
    """FedAvg that takes class prototypes and nothing else from the nodes, and sends them global ones."""

    contributes = PROTOTYPES
    sends: ClassVar[tuple[str, ...]] = ("prototypes", "labels")

    @classmethod
    def sums(cls, params: P) -> Mapping[str, Sum]:
        """Return that each node that holds a class counts the same, where prototypes are averaged."""
        rules = ((kind.merge_knowledge, kind.merge_prototypes) for kind in (cls, PrototypeStrategy))
        return BY_NODES if next(rules) == next(rules) else {}

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Merge the prototypes of this round."""
        self.knowledge = self.merge_prototypes(*stack_prototypes(updates))

    def merge_prototypes(self, p: FloatArray, counts: NDArray[np.int64]) -> Arrays:
        """Return what nodes are sent; by default the mean over those that hold a class, or its past prototype.

        Args:
            p: Local prototypes, (N, C, D).
            counts: Images behind each, (N, C).
        """
        return one_per_class(*mean_prototypes(p, counts > 0), self.knowledge)
