"""Loss terms of FedSR. B batch, D width of the representation, C classes."""

import torch
from torch import Tensor

from fedshift_core.methods.fedsr import Length


def length(z: Tensor, form: Length) -> Tensor:
    r"""Keep representations short: :math:`\frac1B\sum_i\|z_i\|_2`, or of :math:`\|z_i\|_2^2` as the paper prints it.

    Args:
        z: Samples, (B, D).
        form: ``norm`` or ``squared``.

    Returns:
        A scalar in float32.
    """
    z = z.float()
    return (z.norm(dim=1) if form == "norm" else z.square().sum(dim=1)).mean()


def conditional_information(mean: Tensor, deviation: Tensor, class_mean: Tensor, class_deviation: Tensor) -> Tensor:
    r"""Hold p(z|x) to r(z|y), which bounds the information that z has of x given y.

    .. math:: \frac1B\sum_iKL\big(\mathcal N(\mu_i,\sigma_i^2)\,\|\,\mathcal N(m_{y_i},s_{y_i}^2)\big)
        =\frac1B\sum_i\sum_d\Big(\log\frac{s}{\sigma}+\frac{\sigma^2+(\mu-m)^2}{2s^2}-\frac12\Big)

    Args:
        mean: mu, (B, D).
        deviation: sigma, (B, D), above 0.
        class_mean: m of each image's class, (B, D).
        class_deviation: s of each image's class, (B, D), above 0.

    Returns:
        A scalar in float32.
    """
    mean, deviation, class_mean, class_deviation = (
        tensor.float() for tensor in (mean, deviation, class_mean, class_deviation)
    )
    squares = deviation.square() + (mean - class_mean).square()
    each = torch.log(class_deviation) - torch.log(deviation) + squares / (2 * class_deviation.square()) - 0.5
    return each.sum(dim=1).mean()
