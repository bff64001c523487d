"""What strategies share whose nodes contribute class prototypes (C, D) and images per class (C,)."""

from fedshift_wire.records import Arrays
from strategies.base import DomainStrategy
from strategies.prototypes import check_prototypes


class PrototypeStrategy(DomainStrategy):
    """FedAvg that takes class prototypes and nothing else from the nodes; a method merges them."""

    def check_knowledge(self, knowledge: Arrays) -> None:
        """Refuse prototypes of another shape, or with numbers that are not finite."""
        check_prototypes(knowledge, self.federation.num_classes, self.federation.feature_dim)
