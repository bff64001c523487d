"""Loss terms of FedProto. B batch, C classes, D feature width."""

from typing import Literal

import torch
from torch import Tensor


def prototype_distance(
    features: Tensor, y: Tensor, targets: Tensor, present: Tensor, *, reduction: Literal["mse_mean", "sum"]
) -> Tensor:
    r"""Pull each feature to the global prototype of its class (FedProto, L_R).

    .. math:: \frac1{|B'|}\sum_{i\in B'}\|z_i-G^{y_i}\|_2^2,\quad B'=\{i:\,G^{y_i}\ \text{exists}\}

    Args:
        features: z, (B, D).
        y: Labels (B,).
        targets: G, (C, D), without gradient.
        present: Classes that have a prototype, (C,), bool.
        reduction: ``sum`` over the D dimensions as printed, or their mean as the authors' code has it.

    Returns:
        A scalar; 0 if no sample of the batch has a prototype.
    """
    per_sample = distance_of_each(features, y, targets, present, reduction=reduction)
    return per_sample.sum() / present[y].sum().clamp(min=1)


def distance_of_each(
    features: Tensor, y: Tensor, targets: Tensor, present: Tensor, *, reduction: Literal["mse_mean", "sum"]
) -> Tensor:
    """Return the terms of :func:`prototype_distance` (B,), each of one sample; 0 where its class has no prototype."""
    squared = (features.float() - targets.float()[y]).square() * present[y][:, None]  # B x D
    return squared.mean(dim=1) if reduction == "mse_mean" else squared.sum(dim=1)


def nearness(features: Tensor, targets: Tensor, present: Tensor) -> Tensor:
    r"""Score classes by how near their prototypes are: :math:`-\|z_i-G^k\|_2^2`.

    Args:
        features: z, (B, D).
        targets: G, (C, D).
        present: Classes that have a prototype, (C,), bool; at least one.

    Returns:
        Scores (B, C), finite. A class without a prototype counts as 1 farther than the farthest.
    """
    # Not by a matrix product, in which small distances would cancel.
    distances = torch.cdist(features.float(), targets.float(), compute_mode="donot_use_mm_for_euclid_dist")
    scores = -distances.square()  # B x C
    farthest = scores.masked_fill(~present, torch.inf).min(dim=1, keepdim=True).values  # B x 1
    return torch.where(present, scores, farthest - 1)
