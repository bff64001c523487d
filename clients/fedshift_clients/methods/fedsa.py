"""FedSA client [Zhou et al., 2025].

Paper: "FedSA: A Unified Representation Learning via Semantic Anchors for Prototype-based Federated Learning", Yanbing
Zhou, Xiangmou Qu, Chenlong You, Jiyang Zhou, Jingyue Tang, Xin Zheng, Chunmao Cai, Yingbo Wu; AAAI 2025,
https://arxiv.org/abs/2501.05496. Reference code: lokinko/FedSA at commit 75bf106 (``flcore/clients/clientsa.py``).

Symbols: z features, a^k semantic anchor of class k, h the classifier, p_n^k the node's prototypes, delta the margin.

    L = CE + lambda_cc mean_k CE(h(a^k), k) + lambda_r MSE(z, a^y) + lambda_m CE(-(||z - a^c|| + [c = y] delta)_c, y)

delta is the larger of the mean distance to the nearest other one among the anchors, and among the prototypes that the
node sent last (0 before, and where it holds one class).

Deviations: (1) prototypes are the trained model's, in evaluation mode (``proto_source``; the code averages over all
local epochs while it trains); (2) classification is by the head, the code's by the nearest global prototype
(``predict_by``); (3) weights may be averaged as well (``share_weights``), as later papers compare with it.

B batch, C classes, D feature width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift_clients.losses.common import cross_entropy
from fedshift_clients.methods.own_models import OwnModelClient
from fedshift_clients.training.batches import Batch, Terms
from fedshift_core.arrays import Arrays
from fedshift_core.methods.fedsa import FedSAParams

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


GAP = "gap"  # in a node's memory: mean distance of its last prototypes to the nearest other, (1,), float32


class FedSAClient(OwnModelClient[FedSAParams]):
    """Cross-entropy and three terms of the semantic anchors; contributes class prototypes."""

    def start_round(self, server_round: int) -> None:
        """Read the anchors and find the margin."""
        self._anchors = self.tensor("anchors")  # C x D
        if self._anchors is not None:
            own = torch.tensor(float(self.memory[GAP][0]) if GAP in self.memory else 0.0, device=self._anchors.device)
            self._margin = torch.maximum(own, mean_gap(self._anchors))

    def own_terms(self, features: Tensor, batch: Batch) -> Terms:
        """Return the three terms, weighted; none without anchors."""
        p, anchors = self.params, self._anchors
        terms: Terms = {}
        if anchors is None:
            return terms
        if p.lambda_calibration > 0:
            terms["calibration"] = p.lambda_calibration * calibration(self.model.classifier, anchors)
        if p.lambda_anchor > 0:
            terms["anchor"] = p.lambda_anchor * anchor_distance(features, batch.y, anchors)
        if p.lambda_margin > 0:
            contrast = margin_contrast(features, batch.y, anchors, self._margin)
            terms["margin"] = p.lambda_margin * contrast
        return terms

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute the class means of the node's features; remember how far apart they are."""
        sent = super().finish_round(server_round)
        if self.params.lambda_margin > 0:
            held = torch.from_numpy(sent["prototypes"][sent["counts"] > 0])
            self.memory[GAP] = mean_gap(held)[None].numpy()
        return sent
