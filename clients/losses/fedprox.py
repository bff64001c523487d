"""Loss term of FedProx."""

from collections.abc import Sequence

import torch
from torch import Tensor


def proximal(weights: Sequence[Tensor], received: Sequence[Tensor], mu: float) -> Tensor:
    r"""Hold local weights near those that were received (FedProx, Eq. 2).

    .. math:: \frac\mu2\|w-w^t\|_2^2

    The squared norm over all parameters together; its gradient is :math:`\mu(w-w^t)`.

    Args:
        weights: w, the parameters in training; at least one.
        received: w^t, tensors of the same shapes, without gradient.
        mu: Weight of the term.

    Returns:
        A scalar in float32.
    """
    squares = [(w.float() - w_t.float()).square().sum() for w, w_t in zip(weights, received, strict=True)]
    return mu / 2 * torch.stack(squares).sum()
