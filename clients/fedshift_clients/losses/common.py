"""Loss terms that several methods use. B batch, C classes, D feature width, P prototypes.

All of them compute in float32, whatever autocast does to the network.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

#: Norms below it count as it: the gradient of a feature that vanishes stays moderate.
NORM_EPS = 1e-6
#: Stands for minus infinity, which could give NaN in the backward pass.
LOWEST = torch.finfo(torch.float32).min


def unit(features: Tensor) -> Tensor:
    """Return float32 rows (B, D) of norm one; rows of zeros stay zero, so that no cosine is NaN."""
    return F.normalize(features.float(), dim=1, eps=NORM_EPS)


def cosines(features: Tensor, others: Tensor | None = None) -> Tensor:
    """Return the cosines (B, P) of features (B, D) with others (P, D), by default themselves, in float32."""
    rows = unit(features)
    columns = rows if others is None else unit(others)
    with torch.autocast(rows.device.type, enabled=False):  # which would multiply in bfloat16
        return rows @ columns.T


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (B, C) against labels (B,)."""
    return F.cross_entropy(logits.float(), y)


def cross_entropy_of_each(logits: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy (B,) of each row of logits (B, C) against its label (B,)."""
    return F.cross_entropy(logits.float(), y, reduction="none")


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
    return mean_share(cosines(features, prototypes) / tau, y, labels)


def contrast_of_each(features: Tensor, y: Tensor, prototypes: Tensor, labels: Tensor, tau: float) -> Tensor:
    """Return the terms of :func:`prototype_contrast` (B,), each of one sample; 0 where its class has no prototype."""
    per_sample, _ = share_of_each(cosines(features, prototypes) / tau, y, labels)
    return per_sample


def mean_share(similarity: Tensor, y: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of :func:`share_of_each` over the samples whose class has a prototype; 0 if there is none."""
    per_sample, has = share_of_each(similarity, y, labels)
    return per_sample.sum() / has.sum().clamp(min=1)


def share_of_each(similarity: Tensor, y: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return minus the logarithm of the share that the prototypes of a sample's class have of all.

    .. math:: -\log\frac{\sum_{j:\,c_j=y_i}\exp s_{ij}}{\sum_j\exp s_{ij}}

    Args:
        similarity: s, (B, P).
        y: Labels (B,).
        labels: Class c of each prototype, (P,).

    Returns:
        (B,), 0 where the class has no prototype; and which classes have one, (B,), bool.
    """
    positive = y[:, None] == labels  # B x P
    has = positive.any(dim=1)
    per_sample = similarity.logsumexp(dim=1) - similarity.masked_fill(~positive, LOWEST).logsumexp(dim=1)
    return per_sample.masked_fill(~has, 0.0), has


class _Shifted(torch.autograd.Function):
    """A value as it is, and its gradient with given ones added: a few kernels, not several for each tensor."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, by: Sequence[Tensor], *weights: Tensor) -> Tensor:
        ctx.by, ctx.kinds = by, [weight.dtype for weight in weights]
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_value: Tensor) -> tuple[Tensor | None, ...]:
        gradients = torch._foreach_mul(ctx.by, of_value)
        return of_value, None, *(gradient.to(kind) for gradient, kind in zip(gradients, ctx.kinds, strict=True))


def shifted(value: Tensor, weights: Sequence[Tensor], by: Sequence[Tensor]) -> Tensor:
    r"""Return the value, to the bit, with another gradient: :math:`\nabla_w` of it plus ``by``.

    .. math:: \ell+\langle w-\mathrm{sg}(w),\delta\rangle

    Args:
        value: A scalar in float32.
        weights: w, at least one.
        by: delta, tensors of the same shapes, finite, in float32 and without gradient.
    """
    shift: Tensor = _Shifted.apply(value, by, *weights)
    return shift
