"""What strategies share whose nodes contribute class prototypes (C, D) and images per class (C,)."""

from collections.abc import Mapping
from typing import ClassVar

from fedshift_core.params import P
from fedshift_core.secure.layout import Sum
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.contributions import Declaration

#: Of class prototypes, how they are sums over nodes (``DomainStrategy.sums``): each image counts the same, or each node
#: that holds the class.
BY_IMAGES: Mapping[str, Sum] = {"prototypes": "images", "counts": "images"}
BY_NODES: Mapping[str, Sum] = {"prototypes": "nodes", "counts": "nodes"}


class PrototypeStrategy(DomainStrategy[P]):
    """FedAvg that takes class prototypes and nothing else from the nodes; a method merges them."""

    contributes: ClassVar[Declaration] = {"prototypes": ("C", "D"), "counts": ("C",)}
