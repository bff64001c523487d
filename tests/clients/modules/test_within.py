"""Terms over the domains within a node against slow NumPy."""

from itertools import combinations

import numpy as np
import pytest
import torch
from slow_terms import cross_entropy
from support import as64, drawn, labels
from torch.nn import functional as F

from fedshift_clients.modules import within

SIZES = (5, 7, 2)
Z = [drawn(n, n, 3).double() for n in SIZES]
LOGITS = [drawn(n + 9, n, 4).double() for n in SIZES]
LABELS = [labels(n, n, 4) for n in SIZES]
PAIRS = list(combinations([part.numpy() for part in Z], 2))


def test_coral() -> None:
    expected = [((a.mean(0) - b.mean(0)) ** 2).mean() + ((np.cov(a.T) - np.cov(b.T)) ** 2).mean() for a, b in PAIRS]
    assert float(within.coral(Z)) == pytest.approx(np.mean(expected), rel=1e-12)


def test_mmd() -> None:
    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        far = ((a[:, None] - b) ** 2).sum(2)
        return float(np.mean(sum(np.exp(-gamma * far) for gamma in (1e-3, 1e-2, 0.1, 1, 10, 100, 1000))))

    expected = np.mean([kernel(a, a) + kernel(b, b) - 2 * kernel(a, b) for a, b in PAIRS])
    assert float(within.mmd(Z)) == pytest.approx(expected, rel=1e-12)


def test_irm_is_the_product_of_the_gradients_of_both_halves() -> None:
    def slope(scores: torch.Tensor, y: torch.Tensor) -> float:
        up, down = (cross_entropy(as64(scores) * by, y) for by in (1 + 1e-5, 1 - 1e-5))
        return (up - down) / 2e-5

    expected = [slope(s[::2], y[::2]) * slope(s[1::2], y[1::2]) for s, y in zip(LOGITS, LABELS, strict=True)]
    assert float(within.irm(LOGITS, LABELS, F.cross_entropy)) == pytest.approx(np.mean(expected), rel=1e-7)


def test_irm_has_a_gradient_itself() -> None:
    logits = [part.clone().requires_grad_() for part in LOGITS]
    assert torch.autograd.gradcheck(lambda *parts: within.irm(parts, LABELS, F.cross_entropy), logits)


def test_rex_is_the_variance_of_the_domains_losses() -> None:
    expected = np.var([cross_entropy(as64(scores), y) for scores, y in zip(LOGITS, LABELS, strict=True)])
    assert float(within.rex(LOGITS, LABELS, F.cross_entropy)) == pytest.approx(expected, rel=1e-12)
