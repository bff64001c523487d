"""The contrastive terms of FedICON (Tan et al., NeurIPS 2023, equations 2, 3 and 5). B batch, D feature width.

The paper contrasts a sample with the whole local data set; here A(x) is the batch: all 2B views but x itself
(methods A3), on features of norm one, and the sum over samples is a mean over the 2B anchors (A4).
"""

import torch
from torch import Tensor

from fedshift_clients.losses.common import LOWEST, cosines


def supervised_contrast(first: Tensor, second: Tensor, y: Tensor, tau: float, *, itself: bool = False) -> Tensor:
    r"""Pull together all views of a class (Eqs 2 and 3, L_sup).

    .. math:: \frac1{2B}\sum_x\frac{-1}{|P(x)|}\sum_{p\in P(x)}\log
        \frac{\exp(z_x\cdot z_p/\tau)}{\sum_{a\in A(x)}\exp(z_x\cdot z_a/\tau)},
        \quad P(x)=\{p\in A(x):y_p=y_x\}

    P(x) is never empty: the other view of x is in it (A5).

    Args:
        first: z of one view of each sample, (B, D); normalised here.
        second: z of the other view, (B, D).
        y: Labels (B,).
        tau: Temperature, above 0.
        itself: Whether x is in P(x) too, with z_x . z_x = 1, as in FedCCRL's code.

    Returns:
        A scalar.
    """
    both = y.repeat(2)  # 2B
    same_class = both[:, None] == both  # 2B x 2B
    return _contrast(first, second, same_class if itself else same_class & ~_itself(len(both), y.device), tau)


def instance_contrast(first: Tensor, second: Tensor, tau: float) -> Tensor:
    r"""Pull together the two views of a sample, without labels (Eq. 5, L_us).

    .. math:: \frac1{2B}\sum_x-\log\frac{\exp(z_x\cdot z'_x/\tau)}{\sum_{a\in A(x)}\exp(z_x\cdot z_a/\tau)}

    Args:
        first: z of one view of each sample, (B, D); normalised here.
        second: z' of the other view, (B, D).
        tau: Temperature, above 0.

    Returns:
        A scalar; 0 for a batch of one sample, which has nothing to stand out from.
    """
    # Row i of the first half has its positive at i of the second half, and the other way round.
    other_view = _itself(2 * len(first), first.device).roll(len(first), dims=1)
    return _contrast(first, second, other_view, tau)


def _itself(n: int, device: torch.device) -> Tensor:
    return torch.eye(n, dtype=torch.bool, device=device)


def _contrast(first: Tensor, second: Tensor, positive: Tensor, tau: float) -> Tensor:
    """Return the mean over anchors of -log of the share of a positive, averaged over P(x).

    Args:
        first: (B, D).
        second: (B, D).
        positive: Row x marks P(x); at least one per row, (2B, 2B), bool.
        tau: Temperature.
    """
    similarity = cosines(torch.cat((first, second))) / tau  # 2B x 2B
    itself = _itself(len(similarity), similarity.device)
    log_sum = similarity.masked_fill(itself, LOWEST).logsumexp(dim=1)  # over A(x)
    mean_positive = (similarity * positive).sum(dim=1) / positive.sum(dim=1)
    return (log_sum - mean_positive).mean()
