"""Terms over the domains within a node: CORAL, MMD, IRM and V-REx, as DomainBed has them.

CORAL: Sun & Saenko, ECCV 2016 workshops, https://arxiv.org/abs/1607.01719. MMD: Li et al., CVPR 2018. IRM: Arjovsky et
al., https://arxiv.org/abs/1907.02893 (IRMv1). V-REx: Krueger et al., ICML 2021, https://arxiv.org/abs/2003.00688.
DomainBed: Gulrajani & Lopez-Paz, ICLR 2021, https://arxiv.org/abs/2007.01434.
"""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift_clients.losses.imbalance import Classification

#: Widths gamma of the Gaussian kernels exp(-gamma ||a - b||^2), whose sum is the kernel of MMD.
GAMMAS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


def _plain(logits: Tensor, y: Tensor, of: Tensor | None = None) -> Tensor:
    """Return cross-entropy that weighs all classes alike, in the numbers' own type."""
    return F.cross_entropy(logits, y)


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


def irm(logits: Sequence[Tensor], labels: Sequence[Tensor], cross_entropy: Classification = _plain) -> Tensor:
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


def rex(logits: Sequence[Tensor], labels: Sequence[Tensor], cross_entropy: Classification = _plain) -> Tensor:
    """Return the variance (divided by the number of domains) of the domains' mean cross-entropies (V-REx).

    Args:
        logits: Of each domain, (n, C).
        labels: Of each domain, (n,).
        cross_entropy: As the run weighs classes.
    """
    losses = torch.stack([cross_entropy(scores, y) for scores, y in zip(logits, labels, strict=True)])
    return (losses - losses.mean()).square().mean()
