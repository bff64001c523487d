"""MOON's contrast (Eq. 3) against NumPy, and where it must not be NaN."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import drawn
from torch import Tensor

from fedshift_clients.methods.moon import model_contrast


def cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    norms = math.sqrt(sum(v * v for v in a)) * math.sqrt(sum(v * v for v in b))
    return sum(v * w for v, w in zip(a, b, strict=True)) / norms if norms else 0.0


def slow(z: Tensor, z_glob: Tensor, z_prev: Tensor, tau: float) -> float:
    rows = [t.numpy().astype(np.float64) for t in (z, z_glob, z_prev)]
    total = 0.0
    for here, g, p in zip(*rows, strict=True):
        pull, push = math.exp(cosine(here, g) / tau), math.exp(cosine(here, p) / tau)
        total -= math.log(pull / (pull + push))
    return total / len(z)


def test_contrast_by_hand() -> None:
    # Cosine 1 with the global model's, -1 with the previous one's, tau 0.5: -log(e^2 / (e^2 + e^-2)).
    z, g, p = torch.tensor([[2.0, 0.0]]), torch.tensor([[5.0, 0.0]]), torch.tensor([[-1.0, 0.0]])
    by_hand = math.log(1 + math.exp(-4))
    assert float(model_contrast(z, g, p, 0.5)) == pytest.approx(by_hand, rel=1e-5)
    assert float(model_contrast(z, p, g, 0.5)) == pytest.approx(4 + by_hand, rel=1e-5)


@pytest.mark.parametrize("tau", [0.1, 0.5, 2.0])
def test_contrast_against_loops(tau: float) -> None:
    for seed in range(3):
        z, g, p = (drawn(3 * seed + i, 6, 5) for i in range(3))
        assert float(model_contrast(z, g, p, tau)) == pytest.approx(slow(z, g, p, tau), rel=1e-4)


def test_equal_references_give_ln_2_and_a_gradient_of_exactly_zero() -> None:
    z, g = drawn(1, 6, 5).requires_grad_(True), drawn(2, 6, 5)
    value = model_contrast(z, g, g, 0.5)
    value.backward()  # type: ignore[no-untyped-call]
    assert float(value.detach()) == pytest.approx(math.log(2), rel=1e-6)
    assert z.grad is not None and not z.grad.any()


def test_gradient_pulls_to_the_global_and_off_the_previous_representation() -> None:
    z = torch.tensor([[1.0, 1.0]], requires_grad=True)
    g, p = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    model_contrast(z, g, p, 0.5).backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    assert z.grad[0, 0] < 0 < z.grad[0, 1]  # a step against it raises the first and lowers the second


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_zero_features_are_no_nan(zero: int) -> None:
    given = [drawn(i, 4, 3) for i in range(3)]
    given[zero][1] = 0
    given[0].requires_grad_(True)
    value = model_contrast(given[0], given[1], given[2], 0.5)
    value.backward()  # type: ignore[no-untyped-call]
    assert float(value.detach()) == pytest.approx(slow(given[0].detach(), given[1], given[2], 0.5), rel=1e-4)
    assert given[0].grad is not None and torch.isfinite(given[0].grad).all()


def test_a_small_temperature_does_not_overflow() -> None:
    z, g = drawn(1, 2, 3), drawn(2, 2, 3)
    assert torch.isfinite(model_contrast(z, g, z, 1e-3))


def test_it_computes_in_float32_under_autocast_and_for_one_sample() -> None:
    z, g, p = (drawn(i, 1, 3) for i in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        value = model_contrast(z, g, p, 0.5)
    assert value.dtype == torch.float32
    assert torch.equal(value, model_contrast(z, g, p, 0.5))
