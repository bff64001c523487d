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


def unit(features: Tensor) -> Tensor:
    """Return float32 rows (B, D) of norm one; rows of zeros stay zero, so that no cosine is NaN."""
    return F.normalize(features.float(), dim=1, eps=NORM_EPS)


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
    total = contrast_of_each(features, y, prototypes, labels, tau).sum()
    return total / (y[:, None] == labels[None, :]).any(dim=1).sum().clamp(min=1)


def contrast_of_each(features: Tensor, y: Tensor, prototypes: Tensor, labels: Tensor, tau: float) -> Tensor:
    """Return the terms of :func:`prototype_contrast` (B,), each of one sample; 0 where its class has no prototype."""
    h, g = unit(features), unit(prototypes)
    with torch.autocast(h.device.type, enabled=False):  # which would multiply in bfloat16
        similarity = h @ g.T / tau  # B x P
    positive = y[:, None] == labels[None, :]  # B x P
    has = positive.any(dim=1)
    # The lowest float, not -inf: a row without a positive would give NaN in the backward pass.
    numerator = similarity.masked_fill(~positive, torch.finfo(torch.float32).min).logsumexp(dim=1)
    per_sample = similarity.logsumexp(dim=1) - numerator
    return torch.where(has, per_sample, torch.zeros_like(per_sample))


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
