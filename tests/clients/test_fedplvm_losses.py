"""FedPLVM's terms against slow loops in float64."""

import math

import numpy as np
import pytest
import torch
from method_cases import check_term
from support import Float, as64, drawn, labels

from fedshift_clients.methods import fedplvm as terms

B, C, D, P = 9, 4, 5, 7


def cosine(a: Float, b: Float) -> float:
    return float(a @ b) / float(np.linalg.norm(a) * np.linalg.norm(b))


def slow_contrast(z: Float, y: list[int], v: Float, classes: list[int], tau: float, alpha: float) -> float:
    values = []
    for i in range(len(y)):
        s = [max(cosine(z[i], row), 1e-6) ** alpha for row in v]
        positive = sum(math.exp(s[j] / tau) for j in range(len(s)) if classes[j] == y[i])
        if positive > 0:
            values.append(-math.log(positive / sum(math.exp(one / tau) for one in s)))
    return sum(values) / len(values) if values else 0.0


def slow_correction(z: Float, y: list[int], v: Float, classes: list[int]) -> float:
    values = []
    for i in range(len(y)):
        own = [v[j] for j in range(len(classes)) if classes[j] == y[i]]
        if own:
            values.append((1 - cosine(z[i], sum(own) / len(own))) ** 2)
    return 2 * sum(values) / len(values) if values else 0.0


@pytest.mark.parametrize(("tau", "alpha"), [(0.07, 0.25), (0.02, 0.75), (1.0, 1.0)])
@pytest.mark.parametrize("seed", range(2))
def test_contrast_and_its_gradient_against_loops(tau: float, alpha: float, seed: int) -> None:
    z, v = drawn(seed, B, D).abs() + 0.1, drawn(seed + 1, P, D).abs()  # as after a ReLU
    y, classes = labels(seed, B, C), labels(seed + 2, P, C)

    check_term(
        lambda x: terms.sparse_contrast(x, y, v, classes, tau, alpha),
        lambda x: slow_contrast(x, y.tolist(), as64(v), classes.tolist(), tau, alpha),
        z,
        1e-3,
        (2e-3, 2e-4),
    )


@pytest.mark.parametrize("seed", range(2))
def test_correction_and_its_gradient_against_loops(seed: int) -> None:
    z, v = drawn(seed, B, D), drawn(seed + 1, P, D)
    y, classes = labels(seed, B, C), labels(seed + 2, P, C)
    means = torch.zeros(C, D).index_add_(0, classes, v)
    counts = torch.bincount(classes, minlength=C)

    check_term(
        lambda x: terms.correction(x, y, means / counts.clamp(min=1)[:, None], counts > 0),
        lambda x: slow_correction(x, y.tolist(), as64(v), classes.tolist()),
        z,
    )
