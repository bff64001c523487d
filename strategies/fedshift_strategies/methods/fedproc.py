"""FedProc strategy [Mu et al., 2023].

Paper: "FedProc: Prototypical contrastive federated learning on non-IID data", Xutong Mu, Yulong Shen, Ke Cheng,
Xueli Geng, Jiaxuan Fu, Tao Zhang, Zhiwei Zhang; Future Generation Computer Systems 143 (2023) 93-104,
https://arxiv.org/abs/2109.12273. Reference code: none published by the authors.

Symbols: G^k global prototype of class k, alpha_t share of the contrast, t round from 0, T rounds of the run.

Deviation: a class that no node of a round holds keeps its prototype.
"""

from fedshift_core.params import Params
from fedshift_strategies.method import Ask, Node, Range, Scalars
from fedshift_strategies.methods.prototypes import PrototypeStrategy


class FedProcStrategy(PrototypeStrategy):
    """Averages weights as FedAvg does, and the nodes' class prototypes; tells the nodes alpha of the round."""

    tells = {"alpha": Range(0, 1, whole=False)}

    @classmethod
    def uses_rounds(cls, params: Params) -> str:
        """Return that alpha does."""
        return "its alpha is 1 - t / rounds"

    def tell(self, node: Node, ask: Ask) -> Scalars:
        """Tell the round's alpha; nothing before there are prototypes."""
        return {"alpha": contrast_share(ask.server_round, self.federation.rounds)} if self.knowledge else {}


def contrast_share(server_round: int, rounds: int) -> float:
    r"""Return :math:`\alpha_t=1-t/T` of a round counted from 1, so t = ``server_round`` - 1.

    It falls from 1 to 1 / T; it never reaches 0.
    """
    return 1 - (server_round - 1) / rounds
