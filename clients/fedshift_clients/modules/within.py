"""CORAL, MMD, IRM and V-REx over the domains within a node, added to any method's loss (``modules: within-domains``).

Equations and sources are in :mod:`fedshift_clients.modules.within`. A batch's images of one domain are one group; a
domain with fewer than two images in a batch is left out of it, and a batch with one domain has no term.

Deviations from DomainBed: a batch is what the node draws, not as many images of each domain; weights are constant (IRM
and V-REx begin there with the weight 1 and grow after some steps).

CORAL: Sun & Saenko, ECCV 2016 workshops, https://arxiv.org/abs/1607.01719. MMD: Li et al., CVPR 2018. IRM: Arjovsky et
al., https://arxiv.org/abs/1907.02893 (IRMv1). V-REx: Krueger et al., ICML 2021, https://arxiv.org/abs/2003.00688.
DomainBed: Gulrajani & Lopez-Paz, ICLR 2021, https://arxiv.org/abs/2007.01434.
"""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from fedshift_clients.losses.imbalance import Classification
from fedshift_clients.models.networks import Blueprint, SplitModel
from fedshift_clients.modules.base import FirstPass, Modules
from fedshift_clients.modules.params import WithinDomainsParams
from fedshift_clients.training.batches import Batch, Terms

#: Widths gamma of the Gaussian kernels exp(-gamma ||a - b||^2), whose sum is the kernel of MMD.
GAMMAS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


def coral(features: Sequence[Tensor]) -> Tensor:
    """Return the mean squared difference of means, plus that of covariances, averaged over pairs of domains.

    Args:
        features: z of each domain, (n, D), n at least 2; at least two domains.
    """
    moments = [(z.mean(0), torch.cov(z.T).reshape(z.shape[1], z.shape[1])) for z in features]
    pairs = [
        (mean_a - mean_b).square().mean() + (cov_a - cov_b).square().mean()
        for (mean_a, cov_a), (mean_b, cov_b) in combinations(moments, 2)
    ]
    return torch.stack(pairs).mean()


def mmd(features: Sequence[Tensor]) -> Tensor:
    """Return the squared maximum mean discrepancy under a sum of Gaussian kernels, averaged over pairs of domains.

    Args:
        features: z of each domain, (n, D); at least two domains.
    """
    within = [_kernel(z, z).mean() for z in features]
    pairs = [
        within[i] + within[j] - 2 * _kernel(features[i], features[j]).mean()
        for i, j in combinations(range(len(features)), 2)
    ]
    return torch.stack(pairs).mean()


def _kernel(a: Tensor, b: Tensor) -> Tensor:
    distances = (a[:, None] - b[None]).square().sum(-1)
    return torch.stack([torch.exp(-gamma * distances) for gamma in GAMMAS]).sum(0)


def irm(logits: Sequence[Tensor], labels: Sequence[Tensor], cross_entropy: Classification) -> Tensor:
    """Return the penalty of IRMv1, averaged over domains.

    Of a domain it is the product of the gradients, by a factor w = 1 of the logits, of the cross-entropies of its even
    and of its odd images: an estimate of the squared gradient without bias.

    Args:
        logits: Of each domain, (n, C), n at least 2.
        labels: Of each domain, (n,).
        cross_entropy: As the run weighs classes.
    """
    penalties = []
    for scores, y in zip(logits, labels, strict=True):
        factor = torch.ones((), dtype=scores.dtype, device=scores.device, requires_grad=True)
        halves = (cross_entropy(scores[half::2] * factor, y[half::2]) for half in (0, 1))
        gradients = [torch.autograd.grad(loss, factor, create_graph=True)[0] for loss in halves]
        penalties.append(gradients[0] * gradients[1])
    return torch.stack(penalties).mean()


def rex(logits: Sequence[Tensor], labels: Sequence[Tensor], cross_entropy: Classification) -> Tensor:
    """Return the variance (divided by the number of domains) of the domains' mean cross-entropies (V-REx).

    Args:
        logits: Of each domain, (n, C).
        labels: Of each domain, (n,).
        cross_entropy: As the run weighs classes.
    """
    losses = torch.stack([cross_entropy(scores, y) for scores, y in zip(logits, labels, strict=True)])
    return (losses - losses.mean()).square().mean()


LEAST = 2  # images of a domain in a batch, for a covariance and two halves


class WithinDomainsModules(Modules[WithinDomainsParams]):
    """Looks on at the model's passes and adds terms over the domains of a batch."""

    def wrap(self, model: SplitModel, plan: Blueprint) -> SplitModel:
        """Let the model keep what its first pass of a batch gives; nothing else changes."""
        vars(model)["seen_within"] = seen = FirstPass("within-domains")  # features (B, D) and logits (B, C)
        model.register_forward_hook(seen.look)
        return model

    def start_round(self, model: SplitModel, rng: torch.Generator) -> None:
        """Forget what earlier passes left."""
        self.forget(model)

    def forget(self, model: SplitModel) -> None:
        """Let go of the features and logits of a training pass."""
        vars(model)["seen_within"].kept = None

    def terms(self, model: SplitModel, batch: Batch) -> Terms:
        """Return the weighted terms of a batch with images of two domains or more.

        Raises:
            RuntimeError: If the method's first pass was not over the batch.
        """
        if batch.domains is None:
            self.forget(model)
            return {}
        z, logits = vars(model)["seen_within"].take(len(batch.y))
        places = [torch.nonzero(batch.domains == domain).squeeze(1) for domain in sorted({*batch.domains.tolist()})]
        groups = [place for place in places if len(place) >= LEAST]
        if len(groups) < 2:
            return {}
        features = [z[group].float() for group in groups]
        scores, labels = [logits[group].float() for group in groups], [batch.y[group] for group in groups]
        p, weighted = self.params, {}
        if p.coral:
            weighted["coral"] = p.coral * coral(features)
        if p.mmd:
            weighted["mmd"] = p.mmd * mmd(features)
        if p.irm:
            weighted["irm"] = p.irm * irm(scores, labels, self.cross_entropy)
        if p.rex:
            weighted["rex"] = p.rex * rex(scores, labels, self.cross_entropy)
        return weighted
