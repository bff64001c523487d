"""FedMLP client [Guo et al., 2024], an approximation.

Paper: "Dynamic Heterogeneous Federated Learning with Multi-Level Prototypes", Shunxin Guo, Hongsong Wang, Xin Geng;
Pattern Recognition 153 (2024) 110542, https://arxiv.org/abs/2312.09881. Reference code: none found. Of the paper only
the abstract could be had: it names a regulariser of prototypes, one of semantic prototypes and one between tasks that
change in time. What follows is a reading of the first two; the data here do not change, so there is no third.

Symbols: z features, P global prototypes, S semantic ones (``fedshift_clients.methods.fedmlp``), tau temperature.

C classes, D width.
"""

from torch import Tensor

from fedshift_clients.losses.common import LOWEST, cosines
from fedshift_clients.losses.prototypes import prototype_distance
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.prototypes import PrototypeClient, sent_prototypes
from fedshift_core.methods.fedmlp import FedMLPParams


def semantic_prototypes(prototypes: Tensor, present: Tensor, tau: float) -> Tensor:
    r"""Mix the prototypes of all classes by how alike they are.

    .. math:: S^k=\sum_j\mathrm{softmax}_j(\cos(P^k,P^j)/\tau)P^j

    Args:
        prototypes: P, (C, D).
        present: Classes that have one, (C,), bool; j runs over them.
        tau: Temperature, above 0.

    Returns:
        S, (C, D); of a class without a prototype it means nothing.
    """
    alike = (cosines(prototypes) / tau).masked_fill(~present, LOWEST)  # C x C
    return alike.softmax(dim=1) @ prototypes.float()


class FedMLPClient(PrototypeClient[FedMLPParams]):
    """Cross-entropy + lambda_proto ||z - P^y||^2 / D + lambda_semantic ||z - S^y||^2 / D; contributes prototypes."""

    def start_round(self, server_round: int) -> None:
        """Read the global prototypes and make the semantic ones."""
        self._global = sent_prototypes(self)
        if self._global is not None:
            self._semantic = semantic_prototypes(*self._global, self.params.tau)  # C x D

    def own_terms(self, features: Tensor, batch: Batch) -> Terms:
        """Return both terms, weighted; none without global prototypes."""
        p = self.params
        terms: Terms = {}
        if self._global is None:
            return terms
        prototypes, present = self._global
        for name, weight, targets in (
            ("proto", p.lambda_proto, prototypes),
            ("semantic", p.lambda_semantic, self._semantic),
        ):
            if weight > 0:
                distance = prototype_distance(features, batch.y, targets, present, reduction="mse_mean")
                terms[name] = weight * distance
        return terms
