"""Semantic prototypes of FedMLP, an approximation: the paper's equations could not be had. C classes, D width."""

import torch
from torch import Tensor

from fedshift_clients.losses.common import unit


def semantic_prototypes(prototypes: Tensor, present: Tensor, tau: float) -> Tensor:
    r"""Mix the prototypes of all classes by how alike they are.

    .. math:: S^k=\sum_j\mathrm{softmax}_j(\cos(P^k,P^j)/\tau)P^j

    Args:
        prototypes: P, (C, D).
        present: Classes that have one, (C,), bool; j runs over them.
        tau: Temperature, above 0.

    Returns:
        S, (C, D); of a class without a prototype it means nothing.
    """
    p = unit(prototypes)
    with torch.autocast(p.device.type, enabled=False):  # which would multiply in bfloat16
        alike = (p @ p.T / tau).masked_fill(~present[None, :], torch.finfo(torch.float32).min)  # C x C
        return alike.softmax(dim=1) @ prototypes.float()
