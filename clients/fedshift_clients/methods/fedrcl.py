"""FedRCL client [Seo et al., 2024].

Paper: "Relaxed Contrastive Learning for Federated Learning", Seonguk Seo, Jinkyu Kim, Geeho Kim, Bohyung Han;
CVPR 2024, https://arxiv.org/abs/2401.04928. Reference code: skynbe/FedRCL at commit 378beb4
(``clients/rcl_client.py``, ``utils/loss.py``, ``configs/client/fedrcl.yaml``).

Symbols: f^l features of level l, before the activation that ends it and pooled; tau temperature.

Deviations: (1) the levels are those that the network has: five of a ResNet as in the code, three of the two-layer CNN;
(2) the rest of the training (learning rate, its decay, weight decay) is the experiment's.

B batch, D width of the level.
s_ij is the cosine of the features of two samples.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift_clients.base import DomainClient
from fedshift_clients.losses.common import LOWEST, cosines
from fedshift_clients.models.levels import level_features, levels_of
from fedshift_clients.models.networks import Blueprint, SplitModel
from fedshift_clients.training.batches import Batch, Terms
from fedshift_core.methods.fedrcl import FedRCLParams


def hard_contrast(s: Tensor, y: Tensor, tau: float, negatives: int) -> Tensor:
    r"""Contrast each sample's least similar one of its class with the most similar of other classes (L_scl).

    .. math:: -\frac1B\sum_i\log\frac{e^{s_{ip}/\tau}}{e^{s_{ip}/\tau}+\sum_{j\in N_i}e^{s_{ij}/\tau}},\quad
        p=\arg\min_{y_j=y_i}s_{ij}

    A sample is of its own class: one that is alone is its own positive, with s = 1, and is drawn from N alone.

    Args:
        s: Cosines (B, B).
        y: Labels (B,).
        tau: Temperature, above 0.
        negatives: The size of N_i, the most similar samples of other classes; fewer where the batch has fewer.

    Returns:
        A scalar; a sample without any of another class counts as 0.
    """
    same = y[:, None] == y[None, :]  # B x B
    positive = s.masked_fill(~same, torch.inf).amin(dim=1, keepdim=True)  # B x 1
    others = s.masked_fill(same, LOWEST).topk(min(negatives, len(y)), dim=1).values
    logits = torch.cat([positive, others], dim=1).div(tau).clamp(min=LOWEST)  # differences of -inf are not numbers
    return (logits.logsumexp(dim=1) - logits[:, 0]).mean()


def divergence_penalty(s: Tensor, y: Tensor, tau: float, threshold: float) -> Tensor:
    r"""Push apart the samples of a class where even the least similar is too near (L_pen).

    .. math:: -\frac1B\sum_i\log\frac{e^{1/\tau}}{e^{1/\tau}+e^{s_i/\tau}},\quad
        s_i=\min_{j\neq i,\,y_j=y_i}s_{ij}\ \text{where that is}\ \geq\text{threshold, else}\ -1

    Args:
        s: Cosines (B, B).
        y: Labels (B,).
        tau: Temperature, above 0.
        threshold: From which on two samples of a class are too near.

    Returns:
        A scalar.
    """
    itself = torch.eye(len(y), dtype=torch.bool, device=s.device)
    same = (y[:, None] == y[None, :]) & ~itself  # B x B
    least = s.masked_fill(~same, torch.inf).amin(dim=1)  # B; inf where there is no other of the class
    near = (least >= threshold) & same.any(dim=1)
    return F.softplus((torch.where(near, least, torch.full_like(least, -1.0)) - 1) / tau).mean()


class FedRCLClient(DomainClient[FedRCLParams]):
    """Cross-entropy, and over the network's feature levels the mean of a hard contrast and a divergence penalty."""

    @classmethod
    def build_model(cls, plan: Blueprint, params: FedRCLParams) -> SplitModel:
        """Build the model as it is.

        Raises:
            ConfigError: If it does not tell its levels.
        """
        model = super().build_model(plan, params)
        if params.active:
            levels_of(model, f"method=fedrcl with model.name={plan.config.name}")
        return model

    def loss(self, batch: Batch) -> Terms:
        """Return the terms, weighted."""
        p = self.params
        levels = levels_of(self.model, "method=fedrcl") if p.active else ()
        if not levels:  # all of them are frozen
            return super().loss(batch)
        with level_features(levels if p.levels == "all" else levels[-1:]) as maps:
            _, logits = self.forward(batch.x)
        terms = {"ce": self.cross_entropy(logits, batch.y)}
        similar = [cosines(f.relu() if p.feature_relu else f) for f in maps]
        if p.lambda_scl > 0:
            each = [hard_contrast(s, batch.y, p.tau, p.negatives) for s in similar]
            terms["scl"] = p.lambda_scl * torch.stack(each).mean()
        if p.lambda_penalty > 0:
            each = [divergence_penalty(s, batch.y, p.tau, p.threshold) for s in similar]
            terms["penalty"] = p.lambda_penalty * torch.stack(each).mean()
        return terms
