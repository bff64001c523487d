"""The equations of SCAFFOLD on a node."""

import torch
from torch import Tensor


def steps_of_gradients(steps: int, momentum: float) -> float:
    r"""Return how many gradients long the way of K steps of SGD with momentum mu is.

    In :math:`x-y=\eta\sum_kv_k,\;v_k=\mu v_{k-1}+g_k` the gradient of step j has the weight
    :math:`\eta(1-\mu^{K-j+1})/(1-\mu)`; this is the sum of these weights over eta:

    .. math:: \frac1{1-\mu}\Big(K-\mu\frac{1-\mu^K}{1-\mu}\Big)

    K without momentum, so that :math:`(x-y)/(\eta K)` is the mean gradient; with it a weighted mean.
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def next_control(c_i: Tensor, c: Tensor, x: Tensor, y: Tensor, lr: float, steps: float) -> Tensor:
    r"""Return the node's next control variate by option II: :math:`c_i-c+\frac1{K\eta}(x-y)`.

    It is c_i where the rate is 0, or rounds to it: steps of no length tell no gradient.

    Args:
        c_i: The node's control variate, (P,).
        c: The server's, (P,).
        x: The weights that the node received, (P,).
        y: Those that local training left, (P,).
        lr: The rate of the steps, eta.
        steps: Their number, K.
    """
    length = steps * lr
    return c_i if length < torch.finfo(x.dtype).tiny else c_i - c + (x - y) / length
