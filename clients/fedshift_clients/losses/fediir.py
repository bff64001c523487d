"""Loss terms of FedIIR. P weights of the head."""

from collections.abc import Sequence

import torch
from torch import Tensor


def gradient_of(loss: Tensor, weights: Sequence[Tensor], *, twice: bool) -> Tensor:
    """Return the gradient of a scalar with respect to weights as one row, (P,).

    Args:
        loss: The scalar.
        weights: In the order of the row.
        twice: The row has a gradient itself.
    """
    parts = torch.autograd.grad(
        loss, weights, create_graph=twice, retain_graph=twice, allow_unused=True, materialize_grads=True
    )
    return torch.cat([part.reshape(-1) for part in parts])


def disagreement(gradient: Tensor, mean: Tensor) -> Tensor:
    r"""Return how far a head gradient is from the federation's: :math:`\|g-G\|_2^2`.

    Args:
        gradient: g, (P,).
        mean: G, (P,), without gradient.
    """
    return (gradient - mean).square().sum()
