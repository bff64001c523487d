"""FedTHE's equations against slow ones in NumPy, number by number."""

import math

import numpy as np
import pytest
import torch
from method_cases import check_term
from support import Float, as64, drawn, labels, numerical_gradient
from torch import Tensor

from fedshift_clients.methods import fedthe as eq

B, C, D = 6, 4, 5


def softmax(row: Float) -> Float:
    result: Float = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
    return result


def slow_objective(e: Float, g: Float, p: Float, far_g: Float, far_p: Float) -> float:
    total = 0.0
    for i in range(len(e)):
        q = softmax(e[i, 0] * g[i] + e[i, 1] * p[i])
        entropy = -sum(float(one) * math.log(float(one)) for one in q)
        a, b = softmax(g[i]), softmax(p[i])
        rho = float((a * b).sum()) / (math.sqrt(float((a**2).sum())) * math.sqrt(float((b**2).sum())))
        total += rho * entropy + (1 - rho) * (e[i, 0] * far_g[i] + e[i, 1] * far_p[i])
    return total / len(e)


def given(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return drawn(seed, B, C), 2 * drawn(seed + 1, B, C), drawn(seed + 2, B).abs(), drawn(seed + 3, B).abs()


def test_balanced_cross_entropy_is_that_of_the_shifted_scores() -> None:
    logits, y, counts = drawn(0, B, C), labels(0, B, C), torch.tensor([5, 0, 2, 9])
    slow = 0.0
    for row, label in zip(as64(logits), y.tolist(), strict=True):
        shifted = [math.exp(float(v)) * (int(n) + 1) for v, n in zip(row, counts, strict=True)]
        slow -= math.log(shifted[label] / sum(shifted))
    assert float(eq.balanced_cross_entropy(logits, y, counts)) == pytest.approx(slow / B, rel=1e-5)
    even = eq.balanced_cross_entropy(logits, y, torch.full((C,), 7))
    assert float(even) == pytest.approx(float(torch.nn.functional.cross_entropy(logits, y)), rel=1e-5)


def test_the_history_goes_on_from_batch_to_batch_and_a_first_image_does_not_move_it() -> None:
    z, alpha = drawn(3, 7, D), 0.3
    slow = [as64(z[0])]
    for i in range(1, 7):  # in batches of 3: images 3 and 6 are the first of theirs
        slow.append(slow[-1] if i % 3 == 0 else alpha * as64(z[i]) + (1 - alpha) * slow[-1])
    result, last = [], None
    for part in z.split(3):
        averages = eq.history(part, last, alpha)
        last = averages[-1]
        result.append(averages)
    np.testing.assert_allclose(as64(torch.cat(result)), np.stack(slow), rtol=1e-5, atol=1e-6)


def test_the_objective_and_its_gradient() -> None:
    g, p, far_g, far_p = given()
    e = drawn(9, B, 2).softmax(dim=1)
    others = tuple(as64(part) for part in (g, p, far_g, far_p))
    check_term(lambda x: eq.objective(x, g, p, far_g, far_p), lambda x: slow_objective(x, *others), e)


def test_interpolation_is_adam_by_hand_from_equal_weights() -> None:
    parts = given(20)
    others = tuple(as64(part) for part in parts)
    raw = np.ones((B, 2))
    m, v = np.zeros_like(raw), np.zeros_like(raw)

    def slow(x: Float) -> float:
        return slow_objective(np.stack([softmax(row) for row in x]), *others)

    for step in range(1, 4):
        grad = numerical_gradient(slow, torch.from_numpy(raw))
        m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad**2
        raw = raw - 0.1 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    result = eq.interpolation(*parts, steps=3, lr=0.1)
    np.testing.assert_allclose(as64(result), np.stack([softmax(row) for row in raw]), atol=1e-4)
    np.testing.assert_array_equal(as64(eq.interpolation(*parts, steps=0, lr=0.1)), np.full((B, 2), 0.5))
