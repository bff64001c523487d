"""Losses and the interpolation of FedTHE. B batch, C classes, D feature width."""

import torch
from torch import Tensor
from torch.nn import functional as F

STILL = 1e-5  # a batch whose weights have a gradient of a smaller norm is done
EPS = 1e-6  # least product of norms in the cosine


def balanced_cross_entropy(logits: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    r"""Return cross-entropy under the node's own class prior: of :math:`l_k+\log(n_k+1)`.

    Ren et al., "Balanced Meta-Softmax for Long-Tailed Visual Recognition", NeurIPS 2020; 1 is added for classes that
    the node does not hold.

    Args:
        logits: l, (B, C).
        y: Labels (B,).
        counts: n, the node's images of each class, (C,).

    Returns:
        A scalar, the mean over the batch.
    """
    return F.cross_entropy(logits.float() + (counts.float() + 1).log(), y)


def history(features: Tensor, last: Tensor | None, alpha: float) -> Tensor:
    r"""Return the moving average of features in the order of the images, one for each of a batch.

    .. math:: \bar z_i=\alpha z_i+(1-\alpha)\bar z_{i-1}

    The first image of a test set begins it: :math:`\bar z_1=z_1`. The first image of a later batch gets the average as
    the batch before left it, and does not move it, as in the authors' code.

    Args:
        features: z, (B, D).
        last: The average after the batch before, (D,); None in the first batch.
        alpha: How much an image moves it.

    Returns:
        (B, D).
    """
    averages = [features[0] if last is None else last]
    for feature in features[1:]:
        averages.append(alpha * feature + (1 - alpha) * averages[-1])
    return torch.stack(averages)


def objective(
    weights: Tensor, by_global: Tensor, by_personal: Tensor, to_global: Tensor, to_personal: Tensor
) -> Tensor:
    r"""Return what the weights of the two heads are to make small, as a mean over the batch.

    .. math:: \rho\,H\big(e^gl^g+e^pl^p\big)+(1-\rho)\big(e^g\|\tilde z-\bar z^g\|+e^p\|\tilde z-\bar z^p\|\big)

    with H the entropy of the prediction and :math:`\rho` the cosine of the two heads' softmaxes: where they agree the
    prediction is to be sure, where they do not the head counts whose training features are nearer.

    Args:
        weights: e, (B, 2): of the global and of the personal head, each row 1 in sum.
        by_global: l^g, logits of the global head, (B, C).
        by_personal: l^p, (B, C).
        to_global: Distance of an image to the federation's mean feature, (B,).
        to_personal: To the node's own, (B,).

    Returns:
        A scalar.
    """
    e_global, e_personal = weights.unbind(dim=1)
    logits = mixed(weights, by_global, by_personal)
    entropy = -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)
    rho = F.cosine_similarity(by_global.softmax(dim=1), by_personal.softmax(dim=1), dim=1, eps=EPS)
    return (rho * entropy + (1 - rho) * (e_global * to_global + e_personal * to_personal)).mean()


def mixed(weights: Tensor, by_global: Tensor, by_personal: Tensor) -> Tensor:
    """Return the logits (B, C) of both heads, weighted by (B, 2)."""
    return weights[:, :1] * by_global + weights[:, 1:] * by_personal


def interpolation(
    by_global: Tensor, by_personal: Tensor, to_global: Tensor, to_personal: Tensor, *, steps: int, lr: float
) -> Tensor:
    """Return the weights of the two heads for each image. They begin equal; Adam's steps go down the objective.

    The steps end for the whole batch where its gradient is nearly nothing, so that the batch is part of the result.

    Args:
        by_global: As in :func:`objective`, all without gradient.
        by_personal: Likewise.
        to_global: Likewise.
        to_personal: Likewise.
        steps: How many, at most.
        lr: Adam's learning rate.

    Returns:
        (B, 2), each row from 0 up and 1 in sum.
    """
    given = torch.ones(len(by_global), 2, device=by_global.device, requires_grad=True)
    optimizer = torch.optim.Adam([given], lr=lr)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = objective(given.softmax(dim=1), by_global, by_personal, to_global, to_personal)
        loss.backward()  # type: ignore[no-untyped-call]
        assert given.grad is not None
        if given.grad.norm() < STILL:
            break
        optimizer.step()
    return given.detach().softmax(dim=1)
