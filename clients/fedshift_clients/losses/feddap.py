"""Loss terms of FedDAP. B batch, C classes, D feature width.

CPCL, the contrast with other domains' prototypes, is ``fedshift_clients.losses.common.contrast_of_each``.
"""

import torch
from torch import Tensor

from fedshift_clients.losses.common import unit


def turned_of_each(features: Tensor, y: Tensor, own: Tensor, present: Tensor) -> Tensor:
    r"""Return how far each feature is turned from its class's prototype of the node's domain (FedDAP, DPA).

    .. math:: 1-\cos(z_i,P_d^{y_i})

    Args:
        features: z, (B, D).
        y: Labels (B,).
        own: P_d, (C, D).
        present: Classes that have one, (C,), bool.

    Returns:
        (B,), float32; 0 of a sample whose class has none.
    """
    cosine = (unit(features) * unit(own)[y]).sum(dim=1)
    return torch.where(present[y], 1 - cosine, torch.zeros_like(cosine))
