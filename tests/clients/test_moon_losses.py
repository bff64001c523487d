"""MOON's contrast (Eq. 3) against loops, and where both references agree."""

import math

import numpy as np
import pytest
from method_cases import check_term
from numpy.typing import NDArray
from support import Float, as64, drawn
from torch import Tensor

from fedshift_clients.methods.moon import model_contrast


def cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    norms = math.sqrt(sum(v * v for v in a)) * math.sqrt(sum(v * v for v in b))
    return sum(v * w for v, w in zip(a, b, strict=True)) / norms if norms else 0.0


def slow(z: Float, z_glob: Tensor, z_prev: Tensor, tau: float) -> float:
    total = 0.0
    for here, g, p in zip(z, as64(z_glob), as64(z_prev), strict=True):
        pull, push = math.exp(cosine(here, g) / tau), math.exp(cosine(here, p) / tau)
        total -= math.log(pull / (pull + push))
    return total / len(z)


@pytest.mark.parametrize("tau", [0.1, 0.5, 2.0])
def test_contrast_and_its_gradient_against_loops(tau: float) -> None:
    z, g, p = (drawn(i, 6, 5) for i in range(3))
    check_term(lambda x: model_contrast(x, g, p, tau), lambda x: slow(x, g, p, tau), z)


def test_equal_references_give_ln_2_and_a_gradient_of_exactly_zero() -> None:
    z, g = drawn(1, 6, 5).requires_grad_(True), drawn(2, 6, 5)
    value = model_contrast(z, g, g, 0.5)
    value.backward()  # type: ignore[no-untyped-call]
    assert float(value.detach()) == pytest.approx(math.log(2), rel=1e-6)
    assert z.grad is not None and not z.grad.any()
