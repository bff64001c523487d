"""FedCCRL's terms against slow loops in float64."""

import math

import numpy as np
import pytest
import torch
from support import Float, as64, drawn, gradient, labels, numerical_gradient

from fedshift_clients.methods import fedccrl as terms

B, C, D = 5, 3, 4


def slow_contrast(copy: Float, own: Float, y: list[int], tau: float) -> float:
    z, of = np.concatenate([copy, own]), y + y
    s = [[float(a @ b) / float(np.linalg.norm(a) * np.linalg.norm(b)) / tau for b in z] for a in z]
    total = 0.0
    for i, row in enumerate(s):
        same = [row[j] for j in range(len(of)) if of[j] == of[i]]
        total += math.log(sum(math.exp(row[j]) for j in range(len(of)) if j != i)) - sum(same) / len(same)
    return total / len(of)


def slow_divergence(logits: list[Float]) -> float:
    each = [np.exp(row) / np.exp(row).sum(axis=1, keepdims=True) for row in logits]
    total = 0.0
    for i in range(len(logits[0])):
        for p in each:
            for c in range(p.shape[1]):
                total += p[i, c] * (math.log(p[i, c]) - math.log(max(sum(q[i, c] for q in each) / len(each), 1e-7)))
    return total / len(each) / len(logits[0])


@pytest.mark.parametrize(("tau", "seed"), [(0.1, 0), (0.1, 1), (1.0, 2)])
def test_contrast_and_its_gradient_against_loops(tau: float, seed: int) -> None:
    own, copy, y = drawn(seed, B, D), drawn(seed + 100, B, D), labels(seed, B, C)

    def fast(features: torch.Tensor) -> torch.Tensor:
        return terms.aligned(copy, features, y, tau)

    def slow(features: Float) -> float:
        return slow_contrast(as64(copy), features, y.tolist(), tau)

    assert float(fast(own)) == pytest.approx(slow(as64(own)), rel=1e-4)
    np.testing.assert_allclose(as64(gradient(fast, own)), numerical_gradient(slow, own), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("copies", [1, 2])
def test_divergence_and_its_gradient_against_loops(copies: int) -> None:
    others = [drawn(k + 7, B, C) for k in range(copies)]
    given = drawn(3, B, C)

    def fast(logits: torch.Tensor) -> torch.Tensor:
        return terms.divergence([logits, *others])

    def slow(logits: Float) -> float:
        return slow_divergence([logits, *(as64(other) for other in others)])

    assert float(fast(given)) == pytest.approx(slow(as64(given)), rel=1e-4)
    np.testing.assert_allclose(as64(gradient(fast, given)), numerical_gradient(slow, given), rtol=1e-3, atol=1e-4)


def test_equal_predictions_do_not_diverge_and_extremes_stay_finite() -> None:
    given = drawn(0, B, C)
    assert float(terms.divergence([given, given, given])) == pytest.approx(0, abs=1e-6)
    sure = torch.tensor([[300.0, -300.0]], requires_grad=True)
    value = terms.divergence([sure, -sure.detach()])
    value.backward()  # type: ignore[no-untyped-call]
    assert float(value.detach()) == pytest.approx(math.log(2), rel=1e-5)
    assert sure.grad is not None
    assert torch.isfinite(sure.grad).all()
    nothing = torch.zeros(2, D)
    assert torch.isfinite(terms.aligned(nothing, nothing, torch.tensor([0, 1]), 0.1))
