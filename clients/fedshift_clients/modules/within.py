"""CORAL, MMD, IRM and V-REx over the domains within a node, added to any method's loss (``modules: within-domains``).

Equations and sources are in :mod:`fedshift_clients.losses.within`. A batch's images of one domain are one group; a
domain with fewer than two images in a batch is left out of it, and a batch with one domain has no term.

Deviations from DomainBed: a batch is what the node draws, not as many images of each domain; weights are constant (IRM
and V-REx begin there with the weight 1 and grow after some steps).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedshift_clients.losses import within
from fedshift_clients.models.networks import Blueprint, SplitModel
from fedshift_clients.modules.base import Modules
from fedshift_clients.modules.params import WithinDomainsParams
from fedshift_clients.training.batches import Batch
from fedshift_core.plural import plural

LEAST = 2  # images of a domain in a batch, for a covariance and two halves


@dataclass
class _Seen:
    """What the first training pass since the last look left: features (B, D) and logits (B, C)."""

    outcome: tuple[Tensor, Tensor] | None = None

    def keep(self, model: nn.Module, _: Any, outcome: tuple[Tensor, Tensor]) -> None:
        """Take in a pass; a hook of the model."""
        if model.training and torch.is_grad_enabled() and self.outcome is None:
            self.outcome = outcome

    def take(self) -> tuple[Tensor, Tensor]:
        """Return it, and forget it.

        Raises:
            RuntimeError: If there was none.
        """
        if self.outcome is None:
            raise RuntimeError("modules within-domains: the method's loss made no training pass with gradients")
        outcome, self.outcome = self.outcome, None
        return outcome


class WithinDomainsModules(Modules[WithinDomainsParams]):
    """Looks on at the model's passes and adds terms over the domains of a batch."""

    weighs_classes = True

    def wrap(self, model: SplitModel, plan: Blueprint) -> SplitModel:
        """Let the model keep what its first pass of a batch gives; nothing else changes."""
        seen = _Seen()
        vars(model)["seen_within"] = seen
        model.register_forward_hook(seen.keep)
        return model

    def start_round(self, model: SplitModel, rng: torch.Generator) -> None:
        """Forget what earlier passes left."""
        self.forget(model)

    def forget(self, model: SplitModel) -> None:
        """Let go of the features and logits of a training pass."""
        vars(model)["seen_within"].outcome = None

    def terms(self, model: SplitModel, batch: Batch) -> dict[str, Tensor]:
        """Return the weighted terms of a batch with images of two domains or more.

        Raises:
            RuntimeError: If the method's first pass was not over the batch.
        """
        z, logits = vars(model)["seen_within"].take()
        if batch.domains is None:
            return {}
        if len(logits) != len(batch.y):
            raise RuntimeError(
                f"modules within-domains: the method's first pass had {plural(len(logits), 'image')}, the batch "
                f"{len(batch.y)}"
            )
        places = [torch.nonzero(batch.domains == domain).squeeze(1) for domain in sorted({*batch.domains.tolist()})]
        groups = [place for place in places if len(place) >= LEAST]
        if len(groups) < 2:
            return {}
        features = [z[group].float() for group in groups]
        scores, labels = [logits[group].float() for group in groups], [batch.y[group] for group in groups]
        p, weighted = self.params, {}
        if p.coral:
            weighted["coral"] = p.coral * within.coral(features)
        if p.mmd:
            weighted["mmd"] = p.mmd * within.mmd(features)
        if p.irm:
            weighted["irm"] = p.irm * within.irm(scores, labels, self.cross_entropy)
        if p.rex:
            weighted["rex"] = p.rex * within.rex(scores, labels, self.cross_entropy)
        return weighted
