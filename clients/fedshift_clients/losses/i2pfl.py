"""Loss terms of I2PFL (equations 7 and 9). B batch, C classes, D feature width."""

import math
from typing import Literal

import torch
from torch import Tensor

from fedshift_clients.losses.common import class_means


def other_class_partner(y: Tensor, scores: Tensor) -> Tensor:
    """Choose for each sample a random sample of a different class (I2PFL, Eq. 7).

    Args:
        y: Labels (B,).
        scores: Uniform random numbers (B, B).

    Returns:
        Indices j (B,); j = i where the batch has no other class (methods A7).
    """
    other = y[:, None] != y[None, :]  # B x B
    partner = scores.masked_fill(~other, -1.0).argmax(dim=1)
    return torch.where(other.any(dim=1), partner, torch.arange(len(y), device=y.device))


def mix(a: Tensor, b: Tensor, gamma: Tensor) -> Tensor:
    """Return gamma * a + (1 - gamma) * b (MixUp; I2PFL, Eq. 7).

    Args:
        a: (B, ...).
        b: Same shape as ``a``.
        gamma: One weight per sample, (B,).
    """
    weight = gamma.view(-1, *[1] * (a.dim() - 1))
    return weight * a + (1 - weight) * b


def prototype_alignment(
    features: Tensor,
    y: Tensor,
    targets: Tensor,
    present: Tensor,
    *,
    level: Literal["sample", "class_mean"],
    reduction: Literal["mse_mean", "class_sum"],
    distance: Literal["l2sq", "l2"] = "l2sq",
) -> Tensor:
    r"""Pull features to the augmented prototype of their class (I2PFL, Eq. 9, APA).

    ``sample`` / ``mse_mean`` is the working form :math:`\frac1B\sum_i\mathrm{MSE}(h_i,\tilde p^{y_i})`;
    ``class_mean`` compares class means (methods A10b); ``class_sum`` is
    :math:`\sum_k\|\cdot\|_2^2` as recovered, samples averaged within their class (A10).

    Args:
        features: h, (B, D).
        y: Labels (B,).
        targets: p~, (C, D); detach it for the stop-gradient form.
        present: Classes that have a target, (C,), bool.
        level: Align each sample, or the class means of the batch.
        reduction: Mean over samples (or classes) and dimensions, or sum over classes of squared norms.
        distance: ``l2`` takes the root of what stands for each sample (or class); its gradient at distance 0 is 0.

    Returns:
        A scalar; 0 if no class of the batch has a target.
    """
    means, counts = class_means(features, y, len(targets))
    in_batch = (counts > 0) & present  # C
    if level == "class_mean":
        apart = (means - targets.float()) * in_batch[:, None]  # C x D
        weight = in_batch.float()
    else:
        apart = (features.float() - targets.float()[y]) * present[y][:, None]  # B x D
        weight = present[y].float()
        if reduction == "class_sum":
            weight = weight / counts[y].clamp(min=1)
    per_row = _size(apart, reduction, distance) * weight
    if reduction == "mse_mean":
        return per_row.sum() / weight.sum().clamp(min=1)
    return per_row.sum()


def _size(apart: Tensor, reduction: Literal["mse_mean", "class_sum"], distance: Literal["l2sq", "l2"]) -> Tensor:
    """Return the size (N,) of differences (N, D): squared norms, over D for ``mse_mean``; or the roots of these."""
    over = apart.shape[1] if reduction == "mse_mean" else 1
    if distance == "l2":
        norm: Tensor = torch.linalg.vector_norm(apart, dim=1)
        return norm / math.sqrt(over)
    return apart.square().mean(dim=1) if reduction == "mse_mean" else apart.square().sum(dim=1)
