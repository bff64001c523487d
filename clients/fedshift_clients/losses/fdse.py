"""Loss term of FDSE: statistics of what erasers give, held to the global ones. C channels; L layers.

The global ones are the running statistics, g and v, of the BatchNorm behind an eraser, as they came.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Outcome:
    """What one layer gave in a training pass, and what it is held to.

    Attributes:
        mean: Of each channel over images and map, (C,), float32.
        var: Its variance, (C,), biased.
        global_mean: g, (C,).
        global_var: v, (C,).
        eps: Of the BatchNorm behind it: added to both variances.
        momentum: Of the BatchNorm behind it.
    """

    mean: Tensor
    var: Tensor
    global_mean: Tensor
    global_var: Tensor
    eps: float
    momentum: float


def layer_weights(layers: int, beta: float) -> list[float]:
    r"""Return :math:`w_l=e^{\beta l}/\sum_ke^{\beta k}` of layers from the images on."""
    powers = [math.exp(beta * (place + 1 - layers)) for place in range(layers)]  # no more than 1: beta may be large
    return [weight / sum(powers) for weight in powers]


def shift(outcomes: Sequence[Outcome], beta: float) -> Tensor:
    r"""Hold the statistics of each channel to the global ones.

    .. math:: \sum_lw_l\frac1C\sum_c\frac12\Big(\log\frac{s_c}{v_c}+\frac{v_c+(g_c-f_c)^2}{s_c}-1\Big)

    which is :math:`KL(\mathcal N(g,v)\,\|\,\mathcal N(f,s))` with the mean f and the variance s of the batch.

    Args:
        outcomes: Of each layer, from the images on; at least one.
        beta: How much more later layers weigh.
    """
    total = outcomes[0].mean.new_zeros(())
    for weight, at in zip(layer_weights(len(outcomes), beta), outcomes, strict=True):
        s, v = at.var + at.eps, at.global_var + at.eps
        each = 0.5 * (torch.log(s / v) + (v + (at.global_mean - at.mean).square()) / s - 1)
        total = total + weight * each.mean()
    return total


@dataclass
class Running:
    """Holds what the released code keeps of earlier layers and steps of the round.

    It is one number each, for all layers.
    """

    mean: Tensor | None = None
    var: Tensor | None = None


def shift_as_released(outcomes: Sequence[Outcome], beta: float, running: Running) -> Tensor:
    r"""Compute the term as the released code does, which is no divergence.

    .. math:: \sum_lw_l\frac1C\sum_c\Big(\frac{g_c^2-f^2}{2s}+\frac12\log\frac s{v_c}+\frac{v_c}{2s}\Big)

    Here f and s are the mean and the unbiased variance over the channels of their means; both are running averages
    that go on from layer to layer and from step to step.

    Args:
        outcomes: Of each layer, from the images on; at least one.
        beta: How much more later layers weigh.
        running: Of the local round; it is brought up to date.
    """
    total = outcomes[0].mean.new_zeros(())
    f, s = running.mean, running.var
    for weight, at in zip(layer_weights(len(outcomes), beta), outcomes, strict=True):
        mean, var = at.mean.mean(), at.mean.var()
        f = mean if f is None else (1 - at.momentum) * f + at.momentum * mean
        s = var if s is None else (1 - at.momentum) * s + at.momentum * var
        g, v = at.global_mean, at.global_var
        of_mean = ((g.square() - f.square()) / (2 * s)).mean()
        of_var = 0.5 * (torch.log(s / (v + 1e-8)) + v / (s + 1e-8)).mean()
        total = total + weight * (of_mean + of_var)
    assert f is not None
    assert s is not None
    running.mean, running.var = f.detach(), s.detach()
    return total
