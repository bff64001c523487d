"""FedSeProto strategy [Lai et al., 2024].

Paper: "FedSeProto: Learning Semantic Prototype in Federated Learning", Yanyi Lai, Lele Fu, Tianchi Liao,
Chuan Chen, Zibin Zheng; ECAI 2024, https://doi.org/10.3233/FAIA240731 (equations 3 and 16).
Reference code: none published.

Symbols: c_n^k semantic prototype of node n and class k, c_g^k their mean over the nodes that hold k.
Weights are averaged by number of images (Eq. 16), which is FedAvg's rule; where nodes have different
networks no weights travel, and the prototypes are all that is merged.
"""

from fedshift_strategies.methods.prototypes import PrototypeStrategy


class FedSeProtoStrategy(PrototypeStrategy):
    """Averages weights as FedAvg does, and the nodes' semantic prototypes class by class (Eq. 3)."""
