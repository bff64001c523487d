"""Adaptive local aggregation of FedALA, of one tensor: w local, g global, W its weights, all of one shape."""

import torch
from torch import Tensor


def mixed(local: Tensor, received: Tensor, weights: Tensor) -> Tensor:
    r"""Return :math:`\hat w=w+(g-w)\odot W`: the local tensor where W is 0, the global one where it is 1."""
    return local + (received - local) * weights


def learned(weights: Tensor, gradient: Tensor, local: Tensor, received: Tensor, eta: float) -> Tensor:
    r"""Return :math:`\mathrm{clip}_{[0,1]}\big(W-\eta\,\nabla_{\hat w}\mathcal L\odot(g-w)\big)`, one step of W.

    Args:
        weights: W.
        gradient: Of the loss with respect to the mixed tensor.
        local: w.
        received: g.
        eta: The learning rate of W.
    """
    return torch.clamp(weights - eta * (gradient * (received - local)), 0, 1)
