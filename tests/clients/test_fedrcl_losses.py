"""FedRCL's terms against slow loops in float64."""

import math

import numpy as np
import pytest
from method_cases import check_term
from support import Float, drawn, labels

from fedshift_clients.methods import fedrcl as terms

B, C, D = 9, 4, 5


def cosine(a: Float, b: Float) -> float:
    return float(a @ b) / float(np.linalg.norm(a) * np.linalg.norm(b))


def slow_contrast(f: Float, y: list[int], tau: float, negatives: int) -> float:
    total = 0.0
    for i in range(len(y)):
        positive = min(1.0 if j == i else cosine(f[i], f[j]) for j in range(len(y)) if y[j] == y[i])
        others = sorted((cosine(f[i], f[j]) for j in range(len(y)) if y[j] != y[i]), reverse=True)[:negatives]
        total -= math.log(math.exp(positive / tau) / sum(math.exp(s / tau) for s in (positive, *others)))
    return total / len(y)


def slow_penalty(f: Float, y: list[int], tau: float, threshold: float) -> float:
    total = 0.0
    for i in range(len(y)):
        own = [cosine(f[i], f[j]) for j in range(len(y)) if j != i and y[j] == y[i]]
        s = min(own) if own and min(own) >= threshold else -1.0
        total -= math.log(math.exp(1 / tau) / (math.exp(1 / tau) + math.exp(s / tau)))
    return total / len(y)


@pytest.mark.parametrize(("tau", "negatives"), [(0.05, 2), (0.5, 1), (0.5, 100)])
@pytest.mark.parametrize("seed", range(2))
def test_contrast_and_its_gradient_against_loops(tau: float, negatives: int, seed: int) -> None:
    f, y = drawn(seed, B, D), labels(seed, B, C)

    check_term(
        lambda x: terms.hard_contrast(terms.cosines_of(x), y, tau, negatives),
        lambda x: slow_contrast(x, y.tolist(), tau, negatives),
        f,
    )


@pytest.mark.parametrize(("tau", "threshold"), [(0.05, 0.7), (0.5, 0.7), (0.5, -1.0)])
@pytest.mark.parametrize("seed", range(2))
def test_penalty_and_its_gradient_against_loops(tau: float, threshold: float, seed: int) -> None:
    f, y = drawn(seed, B, D) + 2.5, labels(seed, B, C)  # so that some are alike

    check_term(
        lambda x: terms.divergence_penalty(terms.cosines_of(x), y, tau, threshold),
        lambda x: slow_penalty(x, y.tolist(), tau, threshold),
        f,
        1e-3,
    )
