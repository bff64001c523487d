"""Loss terms of FedSA. B batch, C classes, D feature width."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift_clients.losses.common import cross_entropy

LEAST = 1e-12  # of a squared distance: its root has no slope below


def calibration(classifier: nn.Module, anchors: Tensor) -> Tensor:
    r"""Have the classifier right on the anchors: :math:`\frac1C\sum_k\mathrm{CE}(h(a^k),k)`.

    Args:
        classifier: h; it alone gets a gradient.
        anchors: a, (C, D), without gradient.

    Returns:
        A scalar.
    """
    return cross_entropy(classifier(anchors), torch.arange(len(anchors), device=anchors.device))


def anchor_distance(features: Tensor, y: Tensor, anchors: Tensor) -> Tensor:
    r"""Pull each feature to the anchor of its class: :math:`\frac1{BD}\sum_i\|z_i-a^{y_i}\|_2^2`.

    Args:
        features: z, (B, D).
        y: Labels (B,).
        anchors: a, (C, D), without gradient.

    Returns:
        A scalar.
    """
    return F.mse_loss(features.float(), anchors.float()[y])


def margin_contrast(features: Tensor, y: Tensor, anchors: Tensor, margin: Tensor) -> Tensor:
    r"""Contrast distances to anchors, with a margin on the own class.

    .. math:: -\frac1B\sum_i\log\frac{e^{-(\|z_i-a^{y_i}\|_2+\delta)}}
        {e^{-(\|z_i-a^{y_i}\|_2+\delta)}+\sum_{c\ne y_i}e^{-\|z_i-a^c\|_2}}

    Args:
        features: z, (B, D).
        y: Labels (B,).
        anchors: a, (C, D), without gradient.
        margin: delta, a scalar from 0 up, without gradient.

    Returns:
        A scalar.
    """
    z, a = features.float(), anchors.float()
    with torch.autocast(z.device.type, enabled=False):  # which would multiply in bfloat16
        squared = z.square().sum(dim=1)[:, None] - 2 * z @ a.T + a.square().sum(dim=1)  # B x C
    distances = squared.clamp(min=LEAST).sqrt()
    own = y[:, None] == torch.arange(len(a), device=a.device)  # B x C; one_hot would read y, and wait for the device
    return cross_entropy(-(distances + margin * own), y)


def mean_gap(points: Tensor) -> Tensor:
    r"""Return the mean distance of points to their nearest other one: :math:`\frac1N\sum_i\min_{j\ne i}\|p_i-p_j\|_2`.

    Args:
        points: (N, D).

    Returns:
        A scalar; 0 of fewer than two points.
    """
    if len(points) < 2:
        return points.new_zeros(())
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.fill_diagonal_(torch.inf).min(dim=1).values.mean()
