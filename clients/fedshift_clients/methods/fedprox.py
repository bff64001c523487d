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
from fedshift_clients.losses import proximal as terms_of_fedprox
from fedshift_core.methods.fedprox import FedProxParams


class FedProxClient(DomainClient[FedProxParams]):
    """Cross-entropy + mu/2 ||w - w^t||^2 over the parameters that travel; buffers and private parts are free."""

    def start_round(self, server_round: int) -> None:
        """Pair each weight with what it was in w^t."""
        named = [(name, p) for name, p in self.model.named_parameters() if name in self.received_weights]
        self._weights = [p for _, p in named]
        self._global = [self.received_weights[name] for name, _ in named]

    def weight_losses(self) -> dict[str, Tensor]:
        """Return the proximal term (Eq. 2)."""
        if self.params.mu == 0:
            return {}
        return {"prox": terms_of_fedprox.proximal(self._weights, self._global, self.params.mu)}
