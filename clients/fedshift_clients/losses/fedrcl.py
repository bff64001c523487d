"""The loss terms of FedRCL (Seo et al., CVPR 2024), of one feature level. B batch, D width of the level.

s_ij is the cosine of the features of two samples.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift_clients.losses.common import unit


def cosines(features: Tensor) -> Tensor:
    """Return s, (B, B), of features (B, D), in float32."""
    f = unit(features)
    with torch.autocast(f.device.type, enabled=False):  # which would multiply in bfloat16
        return f @ f.T


def hard_contrast(s: Tensor, y: Tensor, tau: float, negatives: int) -> Tensor:
    r"""Contrast each sample's least similar one of its class with the most similar of other classes (L_scl).

    .. math:: -\frac1B\sum_i\log\frac{e^{s_{ip}/\tau}}{e^{s_{ip}/\tau}+\sum_{j\in N_i}e^{s_{ij}/\tau}},\quad
        p=\arg\min_{y_j=y_i}s_{ij}

    A sample is of its own class: one that is alone is its own positive, with s = 1, and is drawn from N alone.

    Args:
        s: Cosines (B, B).
        y: Labels (B,).
        tau: Temperature, above 0.
        negatives: The size of N_i, the most similar samples of other classes; fewer where the batch has fewer.

    Returns:
        A scalar; a sample without any of another class counts as 0.
    """
    same = y[:, None] == y[None, :]  # B x B
    positive = s.masked_fill(~same, torch.inf).amin(dim=1, keepdim=True)  # B x 1
    # The lowest float, not -inf, of which differences are not numbers.
    others = s.masked_fill(same, torch.finfo(torch.float32).min).topk(min(negatives, len(y)), dim=1).values
    logits = torch.cat([positive, others], dim=1).div(tau).clamp(min=torch.finfo(torch.float32).min)
    return (logits.logsumexp(dim=1) - logits[:, 0]).mean()


def divergence_penalty(s: Tensor, y: Tensor, tau: float, threshold: float) -> Tensor:
    r"""Push apart the samples of a class where even the least similar is too near (L_pen).

    .. math:: -\frac1B\sum_i\log\frac{e^{1/\tau}}{e^{1/\tau}+e^{s_i/\tau}},\quad
        s_i=\min_{j\neq i,\,y_j=y_i}s_{ij}\ \text{where that is}\ \geq\text{threshold, else}\ -1

    Args:
        s: Cosines (B, B).
        y: Labels (B,).
        tau: Temperature, above 0.
        threshold: From which on two samples of a class are too near.

    Returns:
        A scalar.
    """
    itself = torch.eye(len(y), dtype=torch.bool, device=s.device)
    same = (y[:, None] == y[None, :]) & ~itself  # B x B
    least = s.masked_fill(~same, torch.inf).amin(dim=1)  # B; inf where there is no other of the class
    near = (least >= threshold) & same.any(dim=1)
    return F.softplus((torch.where(near, least, torch.full_like(least, -1.0)) - 1) / tau).mean()
