"""FedProx client [Li et al., 2020].

Paper: "Federated Optimization in Heterogeneous Networks", Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi,
Ameet Talwalkar, Virginia Smith, MLSys 2020; https://arxiv.org/abs/1812.06127 (equation 2, algorithm 2).
Reference code: litian96/FedProx.

Symbols: w local weights, w^t the global weights of round t, mu the weight of the proximal term.

Deviations: (1) every node trains ``train.epochs`` epochs; the paper's nodes may stop at an inexact solution of their
own; (2) the server averages by number of images (the paper draws nodes by that share and averages equally).
"""

from torch import Tensor

from fedshift_clients.base import DomainClient
from fedshift_clients.losses.proximal import proximal
from fedshift_core.methods.fedprox import FedProxParams
from fedshift_core.params import P


class HeldToReceived(DomainClient[P]):
    """Pairs each parameter that travels with a point, w^t unless a method changes it; buffers and private parts not."""

    def start_round(self, server_round: int) -> None:
        """Pair each weight with what it was in w^t."""
        received = self.received_weights
        self._weights = {name: weight for name, weight in self.model.named_parameters() if name in received}
        self._held_to = {name: received[name] for name in self._weights}

    def distance(self, weight: float) -> Tensor:
        """Return half the squared distance of the weights from their points, times ``weight``."""
        return proximal(list(self._weights.values()), list(self._held_to.values()), weight)


class FedProxClient(HeldToReceived[FedProxParams]):
    """Cross-entropy + mu/2 ||w - w^t||^2 over the parameters that travel; buffers and private parts are free."""

    def weight_losses(self) -> dict[str, Tensor]:
        """Return the proximal term (Eq. 2)."""
        return {"prox": self.distance(self.params.mu)} if self.params.mu else {}
