"""Loss term of MOON. B batch, D width of the representation."""

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift_clients.losses.common import unit


def model_contrast(z: Tensor, z_glob: Tensor, z_prev: Tensor, tau: float) -> Tensor:
    r"""Pull a representation to the global model's and push it off the previous local model's (MOON, Eq. 3).

    .. math:: -\frac1B\sum_i\log\frac{\exp(s(z_i,z_{glob,i})/\tau)}
        {\exp(s(z_i,z_{glob,i})/\tau)+\exp(s(z_i,z_{prev,i})/\tau)}

    with the cosine s; computed as :math:`\log(1+\exp((s_{prev}-s_{glob})/\tau))`, which cannot overflow. Where
    both references agree it is ln 2, with a gradient of exactly zero.

    Args:
        z: Of the model in training, (B, D).
        z_glob: Of the received global model, (B, D), without gradient.
        z_prev: Of the node's previous local model, (B, D), without gradient.
        tau: Temperature, above 0.

    Returns:
        A scalar in float32.
    """
    h = unit(z)
    to_global = (h * unit(z_glob)).sum(dim=1)  # B
    to_previous = (h * unit(z_prev)).sum(dim=1)  # B
    per_sample: Tensor = F.softplus((to_previous - to_global) / tau)
    return torch.mean(per_sample)
