"""FedDyn client [Acar et al., 2021].

Paper: "Federated Learning Based on Dynamic Regularization", Durmus Alp Emre Acar, Yue Zhao, Ramon Matas Navarro,
Matthew Mattina, Paul N. Whatmough, Venkatesh Saligrama, ICLR 2021; https://arxiv.org/abs/2111.04263 (algorithm 1).
Reference code: alpemreacar/FedDyn, commit 48a19fa.

Symbols: w local weights, w^t the global weights of round t, alpha the weight of the regulariser, g_n the node's state
(the gradient of its loss where its last local round ended), s_n = -g_n / alpha.

The paper's objective is CE - <g_n, w> + alpha/2 ||w - w^t||^2, and afterwards g_n <- g_n - alpha (w_n - w^t). So s_n is
the sum of all changes that the node made, and the two terms are, but for a constant, the square of one distance:

    alpha/2 ||w - (w^t - s_n)||^2

which is what is computed and reported: it cannot be negative, its gradient is that of both terms, and alpha = 0 divides
nothing. The reference code keeps s_n, too.

Deviations: (1) every node trains ``train.epochs`` epochs, the paper's nodes solve their objective; (2) private parts
(``model.bn = local``) and buffers have no state and no regulariser.
"""

from torch import Tensor

from fedshift_clients.base import DomainClient
from fedshift_clients.losses.proximal import proximal
from fedshift_clients.training.arrays import view
from fedshift_core.arrays import Arrays
from fedshift_core.methods.feddyn import FedDynParams

MOVED = "moved/"  # prefix in a node's memory of s_n, before the name of a weight


class FedDynClient(DomainClient[FedDynParams]):
    """Cross-entropy + alpha/2 ||w - (w^t - s_n)||^2 over the parameters that travel."""

    remembers_shared = True

    @classmethod
    def scores_as_sent(cls, params: FedDynParams) -> bool:
        """Not where the mean of a round's models is scored: the run's weights are those that the next round needs."""
        return params.scores == "cloud"

    @property
    def _alpha(self) -> float:
        """The weight of the regulariser: what the server tells this node, else the run's."""
        return float(self.scalars.get("alpha", self.params.alpha))

    def start_round(self, server_round: int) -> None:
        """Pair each weight with the point that it is held to, w^t - s_n. Before the first round s_n is 0."""
        received = self.received_weights
        self._weights = {name: p for name, p in self.model.named_parameters() if name in received}
        self._held_to = {name: received[name] for name in self._weights}
        for name, held_to in self._held_to.items():
            if self.params.alpha > 0 and MOVED + name in self.memory:
                self._held_to[name] = held_to - view(self.memory[MOVED + name]).to(held_to.device)

    def weight_losses(self) -> dict[str, Tensor]:
        """Return the regulariser."""
        if self.params.alpha == 0:
            return {}
        return {"dyn": proximal(list(self._weights.values()), list(self._held_to.values()), self._alpha)}

    def finish_round(self, server_round: int) -> Arrays:
        """Add this round's change to s_n; contribute nothing."""
        if self.params.alpha > 0:
            for name, weight in self._weights.items():
                # s_n + (w_n - w^t) = w_n - (w^t - s_n)
                self.memory[MOVED + name] = (weight.detach() - self._held_to[name]).cpu().numpy()
        return super().finish_round(server_round)
