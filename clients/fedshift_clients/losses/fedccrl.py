"""The terms and the style transfer of FedCCRL (Wang, Tang; arXiv 2410.11267). B batch, D feature width, C classes."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift_clients.losses.common import unit

LEAST_SHARE = 1e-7  # of the mean prediction, of which the logarithm is taken; the code's


def aligned(copy: Tensor, own: Tensor, y: Tensor, tau: float) -> Tensor:
    r"""Contrast the features of an image and of a copy with those of all others in the batch (supervised contrast).

    .. math:: \frac1{2B}\sum_i\Big[\log\sum_{j\ne i}e^{s_{ij}/\tau}-\frac1{|P_i|}\sum_{p\in P_i}s_{ip}/\tau\Big]

    over the 2B features of copies and images, s_ij their cosine. P_i are all of i's class, as in the code i itself
    among them, with s = 1.

    Args:
        copy: Features of the copies, (B, D).
        own: Features of the images, (B, D).
        y: Their labels, (B,).
        tau: Temperature, above 0.

    Returns:
        A scalar.
    """
    z, labels = unit(torch.cat([copy, own])), torch.cat([y, y])  # 2B x D, 2B
    with torch.autocast(z.device.type, enabled=False):  # which would multiply in bfloat16
        s = z @ z.T / tau  # 2B x 2B
    same = (labels[:, None] == labels[None, :]).float()
    itself = torch.eye(len(labels), dtype=torch.bool, device=s.device)
    others = s.masked_fill(itself, torch.finfo(torch.float32).min).logsumexp(dim=1)
    return (others - (s * same).sum(dim=1) / same.sum(dim=1)).mean()


def divergence(logits: Sequence[Tensor]) -> Tensor:
    r"""Return the Jensen-Shannon divergence between the predictions for an image and for its copies.

    .. math:: \frac1{KB}\sum_i\sum_k\sum_c p^k_{ic}(\log p^k_{ic}-\log M_{ic}),\quad M=\frac1K\sum_k p^k

    Args:
        logits: K times (B, C).

    Returns:
        A scalar.
    """
    each = torch.stack([F.log_softmax(one.float(), dim=1) for one in logits])  # K x B x C
    mean = each.exp().mean(dim=0).clamp(min=LEAST_SHARE).log()
    return (each.exp() * (each - mean)).sum(dim=2).mean()
