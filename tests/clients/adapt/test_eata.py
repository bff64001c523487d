"""EATA against numbers that are worked out slowly: Fisher values, which samples count, a step."""

import math

import numpy as np
import pytest
import torch
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


def slow_logits(model: Small, x: Tensor, scale: Float, shift: Float) -> Float:
    """Return what the network says with other scales and shifts, image by image."""
    first, last = as64(model.first.weight), as64(model.last.weight)
    h = np.array([first @ row + as64(model.first.bias) for row in as64(x)])
    for j in range(h.shape[1]):
        column = h[:, j].copy()
        variance = sum((v - column.mean()) ** 2 for v in column) / len(column)
        h[:, j] = np.tanh(scale[j] * (column - column.mean()) / math.sqrt(variance + model.norm.eps) + shift[j])
    return np.array([last @ row + as64(model.last.bias) for row in h])


def probabilities(logits: Float) -> Float:
    return np.array([[math.exp(v) / sum(math.exp(w) for w in row) for v in row] for row in logits])


def entropies(logits: Float) -> list[float]:
    return [-sum(p * math.log(p) for p in row) for row in probabilities(logits)]


def theta(model: Small) -> Float:
    return np.concatenate([as64(model.norm.weight), as64(model.norm.bias)])


def test_fisher_values_are_mean_squares_of_slopes_by_batch() -> None:
    model = small()
    batches = [images(0), images(1, 4), images(2)]
    squares = []
    for x in batches:
        taken = slow_logits(model, x, *np.split(theta(model), 2)).argmax(axis=1)

        def loss(at: Float, x: Tensor = x, taken: Float = taken) -> float:
            p = probabilities(slow_logits(model, x, *np.split(at, 2)))
            return -float(np.mean([math.log(row[k]) for row, k in zip(p, taken, strict=True)]))

        squares.append(numerical_gradient(loss, torch.from_numpy(theta(model)), 1e-6) ** 2)
    result = fisher_values(model, list(statistics.layers(model).values()), model, batches)
    np.testing.assert_allclose(np.concatenate([as64(f) for f in result]), np.mean(squares, axis=0), rtol=1e-5)


@pytest.mark.parametrize("margin", [None, 0.8])
@pytest.mark.parametrize("alpha", [0.0, 5.0])
def test_three_batches_against_the_equations(alpha: float, margin: float | None) -> None:
    """Samples are chosen by Eqs 3 to 5 in loops; slopes are taken by differences; SGD with momentum by hand."""
    params = EATAParams(lr=0.05, momentum=0.9, margin=margin, redundancy=0.6, fisher_alpha=alpha)
    highest = 0.4 * math.log(CLASSES) if margin is None else margin  # E_0

    def surer() -> Small:
        made = small()
        with torch.no_grad():
            made.last.weight.mul_(8)  # else no prediction is sure
        return made

    model, clean, b = surer(), [images(9)], 12
    adapted = EATA(model, model, params, clean)
    began, at, moved, mean = theta(model), theta(model), np.zeros(6), None
    plain = surer()
    fisher = np.concatenate([as64(f) for f in fisher_values(plain, [plain.norm], plain, clean)])
    for number in range(3):
        x = images(20 + number, b)
        logits = slow_logits(model, x, *np.split(at, 2))
        np.testing.assert_allclose(adapted(x).numpy(), logits, rtol=1e-5, atol=1e-6)
        p, unsure = probabilities(logits), entropies(logits)
        sure = [h < highest for h in unsure]
        counts = sure
        if mean is not None:
            cosines = [float(mean @ row) / float(np.linalg.norm(mean) * np.linalg.norm(row)) for row in p]
            counts = [c and abs(s) < params.redundancy for c, s in zip(sure, cosines, strict=True)]
            assert sum(counts) < sum(sure), "some are like those before"
        assert sum(counts) >= 2 and sum(sure) < b, "some count, some are not sure"
        new = np.mean([row for row, c in zip(p, counts, strict=True) if c], axis=0)
        mean = new if mean is None else 0.9 * mean + 0.1 * new
        weights = [math.exp(highest - h) for h in unsure]

        def loss(point: Float, x: Tensor = x, weights: list[float] = weights, counts: list[bool] = counts) -> float:
            own = entropies(slow_logits(model, x, *np.split(point, 2)))
            held = alpha * float((fisher * (point - began) ** 2).sum())
            return float(np.mean([w * h for w, h, c in zip(weights, own, counts, strict=True) if c])) + held

        moved = 0.9 * moved + numerical_gradient(loss, torch.from_numpy(at), 1e-6)
        at = at - 0.05 * moved
        np.testing.assert_allclose(theta(model), at, rtol=1e-5, atol=1e-7)


def test_a_batch_of_which_nothing_counts_takes_no_step() -> None:
    model = small()
    before = theta(model)
    adapted = EATA(model, model, EATAParams(margin=1e-6))
    expected = slow_logits(model, images(1), *np.split(before, 2))
    np.testing.assert_allclose(adapted(images(1)).numpy(), expected, rtol=1e-6)
    assert np.array_equal(theta(model), before)
