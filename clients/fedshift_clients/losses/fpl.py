"""Loss terms of FPL. B batch, C classes, D feature width, P cluster prototypes.

CPCL, the contrast with several positives, is ``fedshift_clients.losses.prototype_contrast``.
"""

from torch import Tensor

from fedshift_clients.losses.common import class_means
from fedshift_clients.losses.fedproto import prototype_distance


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


def unbiased_consistency(features: Tensor, y: Tensor, unbiased: Tensor, present: Tensor) -> Tensor:
    r"""Pull each feature to the unbiased prototype of its class (FPL, UPCR).

    .. math:: \frac1{|B'|D}\sum_{i\in B'}\|z_i-U^{y_i}\|_2^2,\quad B'=\{i:\,U^{y_i}\ \text{exists}\}

    Args:
        features: z, (B, D).
        y: Labels (B,).
        unbiased: U, (C, D).
        present: Classes that have one, (C,), bool.

    Returns:
        A scalar; 0 if no sample of the batch has a prototype.
    """
    return prototype_distance(features, y, unbiased, present, reduction="mse_mean")
