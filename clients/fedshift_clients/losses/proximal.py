"""Loss term of FedProx."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedshift_clients.losses.common import shifted


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
    with torch.no_grad():
        away = torch._foreach_sub([w.float() for w in weights], [w_t.float() for w_t in received])
        squares = torch.stack(torch._foreach_norm(away)).square()
        value = mu / 2 * squares.sum()
    return shifted(value, weights, torch._foreach_mul(away, mu))
