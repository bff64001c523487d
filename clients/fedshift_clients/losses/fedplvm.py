"""The loss terms of FedPLVM (Wang et al., NeurIPS 2024). B batch, C classes, D feature width, P prototypes.

Prototypes are constants; features carry gradients.
"""

import torch
from torch import Tensor

from fedshift_clients.losses.common import unit

#: Cosines below it count as it: the slope of a root at 0 has no bound, and a negative number has none.
LEAST_COSINE = 1e-6


def sparse_similarity(features: Tensor, prototypes: Tensor, alpha: float) -> Tensor:
    r"""Return :math:`s_\alpha(z,v)=\cos(z,v)^\alpha`, (B, P); from 0 to 1, and the steeper the smaller the cosine.

    Args:
        features: z, (B, D).
        prototypes: v, (P, D).
        alpha: Above 0 and at most 1; 1 is the cosine itself, where it is not negative.
    """
    z, v = unit(features), unit(prototypes)
    with torch.autocast(z.device.type, enabled=False):  # which would multiply in bfloat16
        return (z @ v.T).clamp(min=LEAST_COSINE) ** alpha


def sparse_contrast(
    features: Tensor, y: Tensor, prototypes: Tensor, labels: Tensor, tau: float, alpha: float
) -> Tensor:
    r"""Contrast features with all cluster prototypes (alpha-sparsity, L_con).

    .. math:: -\frac1{|B'|}\sum_{i\in B'}\log
        \frac{\sum_{v\in P^{y_i}}e^{s_\alpha(z_i,v)/\tau}}{\sum_ve^{s_\alpha(z_i,v)/\tau}},
        \quad B'=\{i:\,P^{y_i}\neq\emptyset\}

    Args:
        features: z, (B, D).
        y: Labels (B,).
        prototypes: v, (P, D).
        labels: The class of each, (P,).
        tau: Temperature, above 0.
        alpha: See :func:`sparse_similarity`.

    Returns:
        A scalar; 0 if no sample of the batch has a prototype.
    """
    similarity = sparse_similarity(features, prototypes, alpha) / tau  # B x P
    positive = y[:, None] == labels[None, :]  # B x P
    has = positive.any(dim=1)
    # The lowest float, not -inf: a row without a positive would give NaN in the backward pass.
    numerator = similarity.masked_fill(~positive, torch.finfo(torch.float32).min).logsumexp(dim=1)
    per_sample = (similarity.logsumexp(dim=1) - numerator).masked_fill(~has, 0.0)
    return per_sample.sum() / has.sum().clamp(min=1)


def correction(features: Tensor, y: Tensor, means: Tensor, present: Tensor) -> Tensor:
    r"""Turn each feature towards the mean of its class's clusters, which the root would not (L_cor).

    .. math:: \frac2{|B'|}\sum_{i\in B'}(1-\cos(z_i,\bar P^{y_i}))^2

    Args:
        features: z, (B, D).
        y: Labels (B,).
        means: The mean of each class's clusters, (C, D).
        present: Classes that have one, (C,), bool.

    Returns:
        A scalar; 0 if no sample of the batch has a prototype.
    """
    has = present[y]  # B
    cosine = (unit(features) * unit(means)[y]).sum(dim=1)
    return 2 * ((1 - cosine).square() * has).sum() / has.sum().clamp(min=1)
