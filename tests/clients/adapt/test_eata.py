"""EATA against numbers that are worked out slowly: Fisher values, which samples count, a step."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from slow_terms import cosines, cross_entropy, softmax
from support import Float, as64, numerical_gradient
from torch import Tensor, nn

from fedshift_clients.adapt.eata import EATA, fisher_values
from fedshift_clients.adapt.params import EATAParams
from fedshift_clients.models import networks
from fedshift_clients.training import statistics

CLASSES, B = 4, 6


class Small(nn.Module):
    """A linear layer, BatchNorm and a linear layer, in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(torch.tanh(self.norm(self.first(x))))
        return logits


def small() -> Small:
    return networks.initialised(3, "eata", Small).double().eval()


def images(seed: int, b: int = B) -> Tensor:
    return torch.randn(b, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3


def slow_logits(model: Small, x: Tensor, at: Float) -> Float:
    """Return what the network says with other scales and shifts."""
    h, (scale, shift) = as64(model.first(x)), np.split(at, 2)
    h = np.tanh(scale * (h - h.mean(0)) / np.sqrt(h.var(0) + model.norm.eps) + shift)
    return np.asarray(h @ as64(model.last.weight).T + as64(model.last.bias))


def entropies(logits: Float) -> Float:
    p = softmax(logits)
    return np.asarray(-(p * np.log(p)).sum(1))


def theta(model: Small) -> Float:
    return np.concatenate([as64(model.norm.weight), as64(model.norm.bias)])


def test_fisher_values_are_mean_squares_of_slopes_by_batch() -> None:
    model, batches, squares = small(), [images(0), images(1, 4), images(2)], []
    for x in batches:
        taken = slow_logits(model, x, theta(model)).argmax(axis=1)

        def loss(at: Float, x: Tensor = x, taken: Any = taken) -> float:
            return cross_entropy(slow_logits(model, x, at), taken)

        squares.append(numerical_gradient(loss, torch.from_numpy(theta(model)), 1e-6) ** 2)
    result = fisher_values(model, list(statistics.layers(model).values()), model, batches)
    np.testing.assert_allclose(np.concatenate([as64(f) for f in result]), np.mean(squares, axis=0), rtol=1e-5)


@pytest.mark.parametrize("margin", [None, 0.8])
@pytest.mark.parametrize("alpha", [0.0, 5.0])
def test_three_batches_against_the_equations(alpha: float, margin: float | None) -> None:
    """Samples are chosen by Eqs 3 to 5; slopes are taken by differences; SGD with momentum by hand."""
    params = EATAParams(lr=0.05, momentum=0.9, margin=margin, redundancy=0.6, fisher_alpha=alpha)
    highest = 0.4 * math.log(CLASSES) if margin is None else margin  # E_0
    model, plain = small(), small()
    with torch.no_grad():
        for made in (model, plain):
            made.last.weight.mul_(8)  # else no prediction is sure
    clean, began, at, moved = [images(9)], theta(plain), theta(plain), np.zeros(6)
    adapted, mean = EATA(model, model, params, clean), np.zeros(CLASSES)
    fisher = np.concatenate([as64(f) for f in fisher_values(plain, [plain.norm], plain, clean)])
    for number in range(3):
        x = images(20 + number, 12)
        logits = slow_logits(model, x, at)
        np.testing.assert_allclose(adapted(x).numpy(), logits, rtol=1e-5, atol=1e-6)
        p, unsure = softmax(logits), entropies(logits)
        sure = unsure < highest
        counts = sure & (abs(cosines(p, mean[None])[:, 0]) < params.redundancy)
        assert sure.sum() < 12, "some are not sure"
        assert 2 <= counts.sum() < sure.sum() + (number == 0), "some count, some are like those before"
        mean = 0.9 * mean + 0.1 * p[counts].mean(0) if number else p[counts].mean(0)
        weights = np.exp(highest - unsure)

        def loss(point: Float, x: Tensor = x, weights: Float = weights, counts: Any = counts) -> float:
            own = entropies(slow_logits(model, x, point))
            return float((weights * own)[counts].mean() + alpha * (fisher * (point - began) ** 2).sum())

        moved = 0.9 * moved + numerical_gradient(loss, torch.from_numpy(at), 1e-6)
        at = at - 0.05 * moved
        np.testing.assert_allclose(theta(model), at, rtol=1e-5, atol=1e-7)
