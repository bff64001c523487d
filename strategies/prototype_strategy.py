"""What strategies share whose nodes contribute class prototypes (C, D) and images per class (C,)."""

from typing import ClassVar

from fedshift_core.params import P
from strategies.base import DomainStrategy
from strategies.contributions import Declaration


class PrototypeStrategy(DomainStrategy[P]):
    """FedAvg that takes class prototypes and nothing else from the nodes; a method merges them."""

    contributes: ClassVar[Declaration] = {"prototypes": ("C", "D"), "counts": ("C",)}
