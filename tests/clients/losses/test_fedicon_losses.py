"""The contrasts of FedICON against slow double loops in float64."""

import math

import numpy as np
import pytest
import torch
from method_cases import check_term
from support import Float, as64
from torch import Tensor

from fedshift_clients.losses.contrast import instance_contrast, supervised_contrast

B, C, D = 6, 3, 5


def views(seed: int, b: int = B, d: int = D) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(b, d, generator=rng), torch.randn(b, d, generator=rng)


# --- the slow versions, written from the paper -----------------------------------------------------


def unit_rows(first: Float, second: Float) -> list[Float]:
    """z of all 2B views, of length one; a zero stays zero."""
    return [z / max(math.sqrt(float(z @ z)), 1e-6) for z in np.concatenate([first, second])]


def anchor(z: list[Float], x: int, positives: list[int], tau: float) -> float:
    """One summand of Eq. 2 (of Eq. 5 with a single positive)."""
    others = [a for a in range(len(z)) if a != x]  # A(x)
    denominator = sum(math.exp(float(z[x] @ z[a]) / tau) for a in others)
    logs = [math.log(math.exp(float(z[x] @ z[p]) / tau) / denominator) for p in positives]
    return -sum(logs) / len(positives)


def slow_supervised(first: Float, second: Float, y: list[int], tau: float) -> float:
    z, both = unit_rows(first, second), y + y
    total = 0.0
    for x in range(len(z)):
        positives = [p for p in range(len(z)) if p != x and both[p] == both[x]]  # P(x), Eq. 3
        total += anchor(z, x, positives, tau)
    return total / len(z)


def slow_instance(first: Float, second: Float, tau: float) -> float:
    z, b = unit_rows(first, second), len(first)
    return sum(anchor(z, x, [x + b if x < b else x - b], tau) for x in range(2 * b)) / (2 * b)


# --- what must hold --------------------------------------------------------------------------------


@pytest.mark.parametrize(("b", "d", "tau"), [(B, D, 0.07), (B, D, 2.0), (2, 1, 0.3), (7, 6, 1.0)])
def test_contrasts_and_their_gradients_against_loops(b: int, d: int, tau: float) -> None:
    first, second = views(b, b, d)
    y = torch.randint(0, C, (b,), generator=torch.Generator().manual_seed(b))
    other = as64(second)
    check_term(
        lambda x: supervised_contrast(x, second, y, tau), lambda x: slow_supervised(x, other, y.tolist(), tau), first
    )
    check_term(lambda x: instance_contrast(x, second, tau), lambda x: slow_instance(x, other, tau), first)
