"""Eqs 3, 5 and 7 of F2DC against slow loops in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Float, as64, drawn, rng
from torch import Tensor

from fedshift_clients.modules import f2dc_terms as terms

B, C, D = 7, 4, 5
NOISES: tuple[terms.Noise, ...] = ("logistic_pair", "gumbel_pair")


def labels(seed: int) -> Tensor:
    return torch.randint(0, C, (B,), generator=rng(seed))


# --- the slow versions -----------------------------------------------------------------------------


def sigmoid(s: float) -> float:
    return 1 / (1 + math.exp(-s))


def slow_mask(s: float, g_a: float, g_b: float, sigma: float) -> float:
    """Eq. 3 as printed."""
    one = math.exp((math.log(sigmoid(s)) + g_a) / sigma)
    other = math.exp((math.log(1 - sigmoid(s)) + g_b) / sigma)
    return one / (one + other)


def slow_entropy(logits: Float, y: list[int]) -> float:
    total = 0.0
    for row, label in zip(logits, y, strict=True):
        total -= math.log(math.exp(row[label]) / sum(math.exp(z) for z in row))
    return total / len(y)


def slow_wrong(logits: Float, y: list[int]) -> list[int]:
    """The second best class where the best is correct, else the best (A6)."""
    collected = []
    for row, label in zip(logits, y, strict=True):
        order = sorted(range(len(row)), key=lambda k, row=row: -row[k])  # type: ignore[misc]
        collected.append(order[1] if order[0] == label else order[0])
    return collected


def slow_decoupling(plus: Float, minus: Float, m_plus: Float, m_minus: Float, y: list[int], tau: float) -> float:
    total = 0.0
    for a, b in zip(plus, minus, strict=True):
        cosine = float(a @ b) / math.sqrt(float(a @ a)) / math.sqrt(float(b @ b))
        total += math.log(math.exp(cosine / tau))
    return total / len(y) + slow_entropy(m_plus, y) + slow_entropy(m_minus, slow_wrong(m_minus, y))


# --- Eq. 3 -----------------------------------------------------------------------------------------


@given(
    s=st.floats(-4, 4),
    u_a=st.floats(0.02, 0.98),
    u_b=st.floats(0.02, 0.98),
    sigma=st.sampled_from([0.1, 0.3, 1.0, 5.0]),
)
@settings(max_examples=200)
def test_stable_mask_is_the_printed_one(s: float, u_a: float, u_b: float, sigma: float) -> None:
    g_a, g_b = (math.log(u) - math.log(1 - u) for u in (u_a, u_b))
    result = terms.soft_mask(torch.tensor([s]), torch.tensor([g_a - g_b]), sigma)
    assert float(result) == pytest.approx(slow_mask(s, g_a, g_b, sigma), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(("kind", "variance"), [("logistic_pair", 2 * math.pi**2 / 3), ("gumbel_pair", math.pi**2 / 3)])
def test_noise_has_the_variance_of_its_kind(kind: terms.Noise, variance: float) -> None:
    # 6.58 and 3.29 (section 7, row 5).
    noise = terms.pair_noise(torch.zeros(400_000), kind, rng())
    assert float(noise.mean()) == pytest.approx(0, abs=0.02)
    assert float(noise.var()) == pytest.approx(variance, rel=0.02)


@pytest.mark.parametrize("kind", NOISES)
def test_noise_depends_on_its_generator_alone(kind: terms.Noise) -> None:
    like = torch.zeros(2, 3, 4, 4, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    torch.manual_seed(0)
    first = terms.pair_noise(like, kind, rng(5))
    state = torch.random.get_rng_state()
    second = terms.pair_noise(like, kind, rng(5))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first, second)
    assert not torch.equal(first, terms.pair_noise(like, kind, rng(6)))
    assert first.dtype == torch.float32 and first.shape == like.shape and first.stride() == like.stride()
    assert not first.requires_grad


# --- y^ --------------------------------------------------------------------------------------------


def test_most_confident_wrong_against_loops() -> None:
    for seed in range(5):
        logits, y = drawn(seed, B, C), labels(seed)
        assert terms.most_confident_wrong(logits, y).tolist() == slow_wrong(as64(logits), y.tolist())


# --- Eqs 5 and 7 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.02, 0.06, 1.0])
def test_decoupling_against_loops(tau: float) -> None:
    for seed in range(2):
        plus, minus, m_plus, m_minus = drawn(seed, B, D), drawn(seed + 10, B, D), drawn(20, B, C), drawn(30, B, C)
        y = labels(seed)
        wrong = terms.most_confident_wrong(m_minus, y)
        result = terms.decoupling(plus, minus, m_plus, m_minus, y, wrong, tau)
        expected = slow_decoupling(as64(plus), as64(minus), as64(m_plus), as64(m_minus), y.tolist(), tau)
        assert float(result) == pytest.approx(expected, rel=1e-4, abs=1e-5)
