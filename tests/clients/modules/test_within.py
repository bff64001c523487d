"""Terms over the domains within a node against slow NumPy."""

from itertools import combinations

import numpy as np
import pytest
import torch

from fedshift_clients.modules import within

SIZES = (5, 7, 2)


@pytest.fixture
def groups() -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    rng = torch.Generator().manual_seed(4)
    z = [torch.randn(n, 3, generator=rng, dtype=torch.float64) for n in SIZES]
    logits = [torch.randn(n, 4, generator=rng, dtype=torch.float64) for n in SIZES]
    y = [torch.randint(4, (n,), generator=rng) for n in SIZES]
    return z, logits, y


def cross_entropy(scores: np.ndarray, y: np.ndarray) -> float:
    total = 0.0
    for row, label in zip(scores, y, strict=True):
        total += np.log(sum(np.exp(value) for value in row)) - row[label]
    return float(total / len(y))


def test_coral(groups: tuple[list[torch.Tensor], ...]) -> None:
    z = [part.numpy() for part in groups[0]]
    expected = []
    for a, b in combinations(z, 2):
        means = np.mean([(a[:, d].mean() - b[:, d].mean()) ** 2 for d in range(3)])
        cov = np.mean([(cov_of(a, i, j) - cov_of(b, i, j)) ** 2 for i in range(3) for j in range(3)])
        expected.append(means + cov)
    assert float(within.coral(groups[0])) == pytest.approx(np.mean(expected), rel=1e-12)


def cov_of(z: np.ndarray, i: int, j: int) -> float:
    return sum((row[i] - z[:, i].mean()) * (row[j] - z[:, j].mean()) for row in z) / (len(z) - 1)


def test_mmd(groups: tuple[list[torch.Tensor], ...]) -> None:
    z = [part.numpy() for part in groups[0]]

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        values = [sum(np.exp(-gamma * sum((p - q) ** 2)) for gamma in (1e-3, 1e-2, 0.1, 1, 10, 100, 1000))
                  for p in a for q in b]  # fmt: skip
        return float(np.mean(values))

    expected = np.mean([kernel(a, a) + kernel(b, b) - 2 * kernel(a, b) for a, b in combinations(z, 2)])
    assert float(within.mmd(groups[0])) == pytest.approx(expected, rel=1e-12)


def test_irm_is_the_product_of_the_gradients_of_both_halves(groups: tuple[list[torch.Tensor], ...]) -> None:
    _, logits, labels = groups
    expected, step = [], 1e-5
    for scores, y in zip(logits, labels, strict=True):
        slopes = []
        for half in (0, 1):
            own, of = scores.numpy()[half::2], y.numpy()[half::2]
            slopes.append((cross_entropy(own * (1 + step), of) - cross_entropy(own * (1 - step), of)) / (2 * step))
        expected.append(slopes[0] * slopes[1])
    assert float(within.irm(logits, labels)) == pytest.approx(np.mean(expected), rel=1e-7)


def test_irm_has_a_gradient_itself(groups: tuple[list[torch.Tensor], ...]) -> None:
    logits = [part.clone().requires_grad_() for part in groups[1]]
    assert torch.autograd.gradcheck(lambda *parts: within.irm(parts, groups[2]), logits)


def test_rex_is_the_variance_of_the_domains_losses(groups: tuple[list[torch.Tensor], ...]) -> None:
    _, logits, labels = groups
    losses = [cross_entropy(scores.numpy(), y.numpy()) for scores, y in zip(logits, labels, strict=True)]
    expected = sum((loss - sum(losses) / 3) ** 2 for loss in losses) / 3
    assert float(within.rex(logits, labels)) == pytest.approx(expected, rel=1e-12)
