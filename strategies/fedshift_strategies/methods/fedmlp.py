"""FedMLP strategy [Guo et al., 2024], an approximation.

Paper: "Dynamic Heterogeneous Federated Learning with Multi-Level Prototypes", Shunxin Guo, Hongsong Wang, Xin Geng;
Pattern Recognition 153 (2024) 110542, https://arxiv.org/abs/2312.09881. Reference code: none found. Of the paper only
the abstract could be had: how the server merges prototypes is a choice.

Symbols: p_n^k prototype of node n and class k, P^k global prototype.
"""

from fedshift_strategies.methods.prototypes import PrototypeStrategy


class FedMLPStrategy(PrototypeStrategy):
    """Averages weights as FedAvg does; P^k is the plain mean over the nodes that hold class k."""
