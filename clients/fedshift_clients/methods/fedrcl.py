"""FedRCL client [Seo et al., 2024].

Paper: "Relaxed Contrastive Learning for Federated Learning", Seonguk Seo, Jinkyu Kim, Geeho Kim, Bohyung Han;
CVPR 2024, https://arxiv.org/abs/2401.04928. Reference code: skynbe/FedRCL at commit 378beb4
(``clients/rcl_client.py``, ``utils/loss.py``, ``configs/client/fedrcl.yaml``).

Symbols: f^l features of level l, before the activation that ends it and pooled; tau temperature.

Deviations: (1) the levels are those that the network has: five of a ResNet as in the code, three of the two-layer CNN;
(2) the rest of the training (learning rate, its decay, weight decay) is the experiment's.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fedshift_clients.base import DomainClient
from fedshift_clients.losses import fedrcl as terms_of_fedrcl
from fedshift_clients.models.levels import level_features, levels_of
from fedshift_clients.models.networks import Blueprint, SplitModel
from fedshift_clients.training.batches import Batch
from fedshift_core.methods.fedrcl import FedRCLParams


class FedRCLClient(DomainClient[FedRCLParams]):
    """Cross-entropy, and over the network's feature levels the mean of a hard contrast and a divergence penalty."""

    weighs_classes = True

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

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the terms, weighted."""
        p = self.params
        levels = levels_of(self.model, "method=fedrcl") if p.active else ()
        if not levels:  # all of them are frozen
            return super().loss(batch)
        with level_features(levels if p.levels == "all" else levels[-1:]) as maps:
            _, logits = self.forward(batch.x)
        terms = {"ce": self.cross_entropy(logits, batch.y)}
        cosines = [terms_of_fedrcl.cosines(f.relu() if p.feature_relu else f) for f in maps]
        if p.lambda_scl > 0:
            contrast = _mean(lambda s: terms_of_fedrcl.hard_contrast(s, batch.y, p.tau, p.negatives), cosines)
            terms["scl"] = p.lambda_scl * contrast
        if p.lambda_penalty > 0:
            penalty = _mean(lambda s: terms_of_fedrcl.divergence_penalty(s, batch.y, p.tau, p.threshold), cosines)
            terms["penalty"] = p.lambda_penalty * penalty
        return terms


def _mean(term: Callable[[Tensor], Tensor], cosines: list[Tensor]) -> Tensor:
    return torch.stack([term(s) for s in cosines]).mean()
