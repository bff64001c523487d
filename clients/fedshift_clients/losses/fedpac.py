"""Loss and statistics of FedPAC. B batch, C classes, D feature width."""

import torch
from torch import Tensor


def alignment(features: Tensor, y: Tensor, targets: Tensor) -> Tensor:
    r"""Pull each feature to the prototype of its class: :math:`\frac1{BD}\sum_i\|z_i-G^{y_i}\|_2^2`.

    Args:
        features: z, (B, D).
        y: Labels (B,).
        targets: G, (C, D), without gradient.

    Returns:
        A scalar.
    """
    return (features.float() - targets.float()[y]).square().mean()


def statistics(means: Tensor, squares: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return what a node tells of its features, of which the server makes the weights of heads.

    .. math:: h^k=\pi^kp^k,\qquad V=\frac1{|D|}\sum_k\Big(\pi^k\,\mathbb E_k\|z\|_2^2-\|h^k\|_2^2\Big)

    with :math:`\pi^k` the share of class k among the node's images.

    Args:
        means: p, (C, D), zero for a class without images.
        squares: Mean squared norm of the features of each class, (C,).
        counts: Images of each class, (C,); at least one of some class.

    Returns:
        h, (C, D), and V, (1,); float32, computed in float64.
    """
    number = counts.sum()
    share = counts.double() / number
    h = share[:, None] * means.double()
    v = ((share * squares.double()).sum() - h.square().sum()) / number
    return h.float(), torch.clamp(v, min=0).float()[None]  # below 0 by rounding only
