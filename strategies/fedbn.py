"""FedBN strategy [Li et al., 2021].

Paper: "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", Xiaoxiao Li, Meirui Jiang,
Xiaofei Zhang, Michael Kamp, Qi Dou, ICLR 2021; https://arxiv.org/abs/2102.07623 (algorithm 1).
Reference code: med-air/FedBN, commit 0927bb8.

What is averaged holds no BatchNorm: the nodes never send it. Deviations: none.
"""

from typing import Literal

from fedshift_wire.params import Params
from strategies.base import DomainStrategy
from strategies.federation.updates import Update


class FedBNServerParams(Params):
    """The server's side of FedBN."""

    weighting: Literal["equal", "samples"] = "equal"  # each node alike, as paper and code; or by its images


class FedBNStrategy(DomainStrategy):
    """Averages what the nodes share, each with the same weight."""

    params_model = FedBNServerParams
    params: FedBNServerParams

    def weights(self, updates: list[Update]) -> list[float]:
        """Return 1/K for each of the K updates (algorithm 1), or the share of training images."""
        if self.params.weighting == "samples":
            return super().weights(updates)
        return [1 / len(updates)] * len(updates)
