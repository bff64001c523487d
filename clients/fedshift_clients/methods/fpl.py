"""FPL client [Huang et al., 2023].

Paper: "Rethinking Federated Learning with Domain Shift: A Prototype View", Wenke Huang, Mang Ye, Zekun Shi,
He Li, Bo Du; CVPR 2023. Reference code: WenkeHuang/RethinkFL at commit 61275b6 (``models/fpl.py``).

Symbols: z features, P cluster prototypes, U unbiased prototypes, tau temperature.

Deviations: (1) prototypes are taken after training in evaluation mode (``proto_source``; the code gathers them
in the last local epoch); (2) samples whose class has no prototype are left out of the means, which the code
divides by all.

B batch, C classes, D feature width, P cluster prototypes.
"""

from collections.abc import Callable

from torch import Tensor

from fedshift_clients.losses.common import class_means, contrast_of_each, prototype_contrast
from fedshift_clients.losses.prototypes import distance_of_each, prototype_distance
from fedshift_clients.methods.common import labelled_prototypes
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.prototypes import PrototypeClient
from fedshift_core.methods.fpl import FPLParams


def unbiased_prototypes(prototypes: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    r"""Average the cluster prototypes of each class: :math:`U^k=\frac1{J}\sum_jP_j^k` (FPL).

    Each cluster counts once, however many nodes are in it; this is what makes U unbiased.

    Args:
        prototypes: P, (P, D).
        labels: Class of each, (P,).
        num_classes: C.

    Returns:
        U, (C, D) in float32, and which classes have one, (C,), bool.
    """
    means, counts = class_means(prototypes, labels, num_classes)
    return means, counts > 0


class FPLClient(PrototypeClient[FPLParams]):
    """Cross-entropy + CPCL + UPCR, the distance to the unbiased prototypes; contributes class prototypes."""

    def start_round(self, server_round: int) -> None:
        """Read the cluster prototypes and average them by class."""
        self._sent = labelled_prototypes(self)  # P x D, P
        if self._sent is not None:
            self._unbiased = unbiased_prototypes(*self._sent, self.model.num_classes)

    def own_terms(self, features: Tensor, batch: Batch) -> Terms:
        """Return both terms; none without prototypes (round 1)."""
        return self._terms(prototype_contrast, prototype_distance, features, batch)

    def own_terms_of_each(self, features: Tensor, batch: Batch) -> Terms:
        """Return both terms of each image (B,); 0 where its class has no prototype."""
        return self._terms(contrast_of_each, distance_of_each, features, batch)

    def _terms(
        self, contrast: Callable[..., Tensor], distance: Callable[..., Tensor], features: Tensor, batch: Batch
    ) -> Terms:
        p, terms = self.params, Terms()
        if self._sent is None:
            return terms
        if p.use_cpcl:
            terms["cpcl"] = contrast(features, batch.y, *self._sent, p.tau)
        if p.use_upcr:
            terms["upcr"] = distance(features, batch.y, *self._unbiased, reduction="mse_mean")
        return terms
