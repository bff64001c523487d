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

from fedshift_clients.methods.common import keep, kept
from fedshift_clients.methods.fedprox import HeldToReceived
from fedshift_core.arrays import Arrays
from fedshift_core.methods.feddyn import FedDynParams

MOVED = "moved/"  # prefix in a node's memory of s_n, before the name of a weight


class FedDynClient(HeldToReceived[FedDynParams]):
    """Cross-entropy + alpha/2 ||w - (w^t - s_n)||^2 over the parameters that travel."""

    remembers_shared = True

    @classmethod
    def scores_as_sent(cls, params: FedDynParams) -> bool:
        """Not where the mean of a round's models is scored: the run's weights are those that the next round needs."""
        return params.scores == "cloud"

    def start_round(self, server_round: int) -> None:
        """Pair each weight with the point that it is held to, w^t - s_n. Before the first round s_n is 0."""
        super().start_round(server_round)
        for name, moved in kept(self, MOVED, self._weights).items():
            self._held_to[name] = self._held_to[name] - moved.to(self.setup.device)

    def weight_losses(self) -> dict[str, Tensor]:
        """Return the regulariser; its weight is what the server tells this node, else the run's."""
        if self.params.alpha == 0:
            return {}
        return {"dyn": self.distance(float(self.scalars.get("alpha", self.params.alpha)))}

    def finish_round(self, server_round: int) -> Arrays:
        """Add this round's change to s_n; contribute nothing."""
        if self.params.alpha > 0:
            # s_n + (w_n - w^t) = w_n - (w^t - s_n)
            keep(self, MOVED, {name: weight - self._held_to[name] for name, weight in self._weights.items()})
        return {}
