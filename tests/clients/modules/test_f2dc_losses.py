"""Eqs 3, 5 and 7 of F2DC against slow loops in float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_terms import check, check_edges, cosines, cross_entropy
from support import Float, as64, drawn, labels, rng
from torch import Tensor

from fedshift_clients.modules import f2dc_terms as terms

# --- the slow versions -----------------------------------------------------------------------------


# --- Eq. 3 -----------------------------------------------------------------------------------------


@given(st.floats(-4, 4), st.floats(0.02, 0.98), st.floats(0.02, 0.98), st.sampled_from([0.1, 0.3, 1.0, 5.0]))
@settings(max_examples=200)
def test_stable_mask_is_the_printed_one(s: float, u_a: float, u_b: float, sigma: float) -> None:
    """Eq. 3."""
    g_a, g_b = (math.log(u) - math.log(1 - u) for u in (u_a, u_b))
    one, other = (((1 / (1 + math.exp(-x))) * math.exp(g)) ** (1 / sigma) for x, g in ((s, g_a), (-s, g_b)))
    result = terms.soft_mask(torch.tensor([s]), torch.tensor([g_a - g_b]), sigma)
    assert float(result) == pytest.approx(one / (one + other), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(("kind", "variance"), [("logistic_pair", 2 * math.pi**2 / 3), ("gumbel_pair", math.pi**2 / 3)])
def test_noise_has_the_variance_of_its_kind(kind: terms.Noise, variance: float) -> None:
    # 6.58 and 3.29 (section 7, row 5).
    noise = terms.pair_noise(torch.zeros(400_000), kind, rng())
    assert float(noise.mean()) == pytest.approx(0, abs=0.02)
    assert float(noise.var()) == pytest.approx(variance, rel=0.02)


# --- y^ --------------------------------------------------------------------------------------------


# --- Eqs 5 and 7 -----------------------------------------------------------------------------------


def slow_wrong(logits: Any, y: Any) -> Any:
    """Return the second best class where the best is correct, else the best (A6)."""
    best = np.argsort(-logits)
    return np.where(best[:, 0] == y, best[:, 1], best[:, 0])


def slow_decoupling(plus: Float, minus: Float, m_plus: Float, m_minus: Float, y: Any, tau: float) -> float:
    apart = float(np.diag(cosines(plus, minus)).mean()) / tau
    return apart + cross_entropy(m_plus, y) + cross_entropy(m_minus, slow_wrong(m_minus, y))


@pytest.mark.parametrize("tau", [0.02, 0.06, 1.0])
def test_decoupling_and_the_most_confident_wrong_class(tau: float) -> None:
    def fast(plus: Tensor, minus: Tensor, m_plus: Tensor, m_minus: Tensor, y: Tensor, tau: float) -> Tensor:
        wrong = terms.most_confident_wrong(m_minus, y)
        assert wrong.tolist() == slow_wrong(as64(m_minus), y.numpy()).tolist()
        return terms.decoupling(plus, minus, m_plus, m_minus, y, wrong, tau)

    for seed in range(2):
        parts = drawn(seed, 7, 5), drawn(seed + 10, 7, 5), drawn(20, 7, 4), drawn(30, 7, 4)
        check(fast, slow_decoupling, *parts, labels(seed, 7, 4), tau)
        check_edges(terms.separability, parts[0], parts[1], tau, low=-100)  # has another bound
    check_edges(lambda x: terms.soft_mask(100 * x, None, 0.1).sum(), parts[0])
