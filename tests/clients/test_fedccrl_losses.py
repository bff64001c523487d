"""FedCCRL's terms against slow loops in float64."""

import math

import numpy as np
import pytest
import torch
from method_cases import check_term
from support import Float, as64, drawn, gradient, labels

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

    check_term(lambda x: terms.aligned(copy, x, y, tau), lambda x: slow_contrast(as64(copy), x, y.tolist(), tau), own)


@pytest.mark.parametrize("copies", [1, 2])
def test_divergence_and_its_gradient_against_loops(copies: int) -> None:
    others = [drawn(k + 7, B, C) for k in range(copies)]
    given = drawn(3, B, C)

    check_term(
        lambda x: terms.divergence([x, *others]), lambda x: slow_divergence([x, *(as64(o) for o in others)]), given
    )


def test_equal_predictions_do_not_diverge_and_sure_ones_do_by_log_two() -> None:
    given, sure = drawn(0, B, C), torch.tensor([[300.0, -300.0]])
    assert float(terms.divergence([given, given, given])) == pytest.approx(0, abs=1e-6)
    assert float(terms.divergence([sure, -sure])) == pytest.approx(math.log(2), rel=1e-5)
    assert gradient(lambda x: terms.divergence([x, -sure]), sure).isfinite().all()
