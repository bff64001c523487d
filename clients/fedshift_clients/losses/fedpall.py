"""Loss terms of FedPall (Zhang et al., ICCV 2025), as plain functions."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift_core.methods.fedpall import Contrast

EPS = 1e-5  # of BatchNorm


def amplifier(z: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """Return what the amplifier makes of features: logits of the node that they are from.

    Three linear layers without bias, BatchNorm and ReLU between them; BatchNorm normalises by the batch.

    Args:
        z: Features, (B, D).
        weights: ``linear1`` (H, D), ``scale1``, ``shift1`` (H,), ``linear2`` (H, H), ``scale2``, ``shift2`` (H,) and
            ``linear3`` (N, H).

    Returns:
        (B, N).
    """
    for layer in ("1", "2"):
        z = z @ weights[f"linear{layer}"].T
        variance, mean = torch.var_mean(z, dim=0, correction=0)
        z = (z - mean) / torch.sqrt(variance + EPS) * weights[f"scale{layer}"] + weights[f"shift{layer}"]
        z = torch.relu(z)
    return z @ weights["linear3"].T


def confusion(logits: Tensor) -> Tensor:
    r"""Return how far the amplifier is from knowing nothing of the node, a mean over the batch.

    .. math:: KL(u\,\|\,\operatorname{softmax}(l))=-\log N-\frac1N\sum_n\log\operatorname{softmax}(l)_n

    Args:
        logits: l, (B, N).
    """
    uniform = torch.full_like(logits, 1 / logits.shape[1])
    return F.kl_div(logits.log_softmax(dim=1), uniform, reduction="batchmean")


def collaboration(
    z: Tensor, y: Tensor, prototypes: Tensor, present: Tensor, tau: float, form: Contrast = "cosine"
) -> Tensor:
    r"""Return the contrast with the global prototypes, a mean over the samples whose class has one; else 0.

    .. math:: -\log\frac{\exp(\cos(z,G^y)/\tau)}{\sum_k\exp(s_k/\tau)}

    with :math:`s_k=\cos(z,G^k)`, or as released the inner product of the unit feature with :math:`G^k`, which is
    shorter than 1: a mean of unit vectors.

    Args:
        z: Features, (B, D).
        y: Labels, (B,).
        prototypes: G, (C, D).
        present: Which classes have one, (C,).
        tau: Temperature.
        form: ``cosine`` or ``released``.
    """
    unit = F.normalize(z, dim=1)
    near = unit @ F.normalize(prototypes, dim=1).T / tau  # B x C
    others = near if form == "cosine" else unit @ prototypes.T / tau
    others = others.masked_fill(~present, float("-inf"))
    own = near.gather(1, y[:, None])[:, 0]
    held = present[y]  # B
    return ((torch.logsumexp(others, dim=1) - own) * held).sum() / held.sum().clamp(min=1)
