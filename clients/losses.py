"""Loss terms as plain functions. B batch, C classes, D feature width, P prototypes.

All of them compute in float32, whatever autocast does to the network.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

#: Norms below it count as it: the gradient of a feature that vanishes stays moderate.
NORM_EPS = 1e-6


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (B, C) against labels (B,)."""
    return F.cross_entropy(logits.float(), y)


def class_means(features: Tensor, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Average features by class.

    Args:
        features: (B, D).
        y: Labels (B,).
        num_classes: C.

    Returns:
        Means (C, D) in float32, zero where a class has no sample, and counts (C,).
    """
    sums = features.new_zeros(num_classes, features.shape[1], dtype=torch.float32)
    sums = sums.index_add(0, y, features.float())  # C x D
    counts = torch.bincount(y, minlength=num_classes)  # C
    return sums / counts.clamp(min=1)[:, None], counts


def prototype_contrast(features: Tensor, y: Tensor, prototypes: Tensor, labels: Tensor, tau: float) -> Tensor:
    r"""Contrast features with global prototypes by cosine similarity s (I2PFL, Eq. 6, GPCL).

    .. math:: -\frac1B\sum_i\log
        \frac{\sum_{j:\,c_j=y_i}\exp(s(h_i,g^j)/\tau)}{\sum_j\exp(s(h_i,g^j)/\tau)}

    With one prototype per class this is Eq. 6; with several (FINCH) every prototype of the class is a
    positive (methods A15). Samples whose class has no prototype are left out.

    Args:
        features: h, (B, D).
        y: Labels (B,).
        prototypes: g, (P, D).
        labels: Class c of each prototype, (P,).
        tau: Temperature, above 0.

    Returns:
        A scalar; 0 if no sample of the batch has a prototype.
    """
    h = F.normalize(features.float(), dim=1, eps=NORM_EPS)  # zero rows stay zero, so no NaN
    g = F.normalize(prototypes.float(), dim=1, eps=NORM_EPS)
    with torch.autocast(h.device.type, enabled=False):  # which would multiply in bfloat16
        similarity = h @ g.T / tau  # B x P
    positive = y[:, None] == labels[None, :]  # B x P
    has = positive.any(dim=1)
    # The lowest float, not -inf: a row without a positive would give NaN in the backward pass.
    numerator = similarity.masked_fill(~positive, torch.finfo(torch.float32).min).logsumexp(dim=1)
    per_sample = similarity.logsumexp(dim=1) - numerator
    total = torch.where(has, per_sample, torch.zeros_like(per_sample)).sum()
    return total / has.sum().clamp(min=1)


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
) -> Tensor:
    r"""Pull features to the augmented prototype of their class (I2PFL, Eq. 9, APA).

    ``sample`` / ``mse_mean`` is the working form :math:`\frac1B\sum_i\mathrm{MSE}(h_i,\tilde p^{y_i})`;
    ``class_mean`` compares class means (methods A10b); ``class_sum`` is
    :math:`\sum_k\|\cdot\|_2^2` as printed, samples averaged within their class (A10).

    Args:
        features: h, (B, D).
        y: Labels (B,).
        targets: p~, (C, D); detach it for the stop-gradient form.
        present: Classes that have a target, (C,), bool.
        level: Align each sample, or the class means of the batch.
        reduction: Mean over samples (or classes) and dimensions, or sum over classes of squared norms.

    Returns:
        A scalar; 0 if no class of the batch has a target.
    """
    means, counts = class_means(features, y, len(targets))
    in_batch = (counts > 0) & present  # C
    if level == "class_mean":
        squared = (means - targets.float()).square() * in_batch[:, None]  # C x D
        weight = in_batch.float()
    else:
        squared = (features.float() - targets.float()[y]).square() * present[y][:, None]  # B x D
        weight = present[y].float()
        if reduction == "class_sum":
            weight = weight / counts[y].clamp(min=1)
    per_row = (squared.mean(dim=1) if reduction == "mse_mean" else squared.sum(dim=1)) * weight
    if reduction == "mse_mean":
        return per_row.sum() / weight.sum().clamp(min=1)
    return per_row.sum()
