"""Eqs 10 to 14 of FedCode against slow loops in float64, and against answers worked out by hand."""

import math
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Float, as64, drawn
from torch import Tensor

from fedshift_clients.methods import fedcode_terms as terms

Form = Literal["abs_cos", "sum_abs", "literal"]
B, D, K, J = 6, 5, 4, 3
TAU = 0.5


# --- the slow versions -----------------------------------------------------------------------------


def sim(x: Float, y: Float, tau: float) -> float:
    """Eq. 10; 0 for a feature of length 0."""
    norms = math.sqrt(sum(float(v) ** 2 for v in x)) * math.sqrt(sum(float(v) ** 2 for v in y))
    return sum(float(a) * float(b) for a, b in zip(x, y, strict=True)) / norms / tau if norms else 0.0


def slow_form(anchor: Float, positive: Float, negatives: list[Float], tau: float) -> float:
    """The fraction of Eqs 11 and 13 for one sample."""
    numerator = math.exp(sim(anchor, positive, tau))
    return -math.log(numerator / (numerator + sum(math.exp(sim(anchor, n, tau)) for n in negatives)))


def slow_semantic(
    z_c: Float, y: list[int], g: dict[int, Float], tau: float, z_s: Float | None = None, centre: Float | None = None
) -> float:
    values = []
    for i, k in enumerate(y):
        if k not in g:
            continue
        negatives = [g[other] for other in g if other != k]
        negatives += [] if z_s is None else [z_s[i]]
        negatives += [] if centre is None else [centre]
        values.append(slow_form(z_c[i], g[k], negatives, tau))
    return sum(values) / len(values) if values else 0.0


def slow_style(
    z_s: Float, j: int, p: Float, tau: float, z_c: Float | None = None, centre: Float | None = None
) -> float:
    values = []
    for i in range(len(z_s)):
        negatives = [p[other] for other in range(len(p)) if other != j]
        negatives += [] if z_c is None else [z_c[i]]
        negatives += [] if centre is None else [centre]
        values.append(slow_form(z_s[i], p[j], negatives, tau))
    return sum(values) / len(values)


def slow_decoupling(z_s: Float, z_c: Float, form: str) -> float:
    values = []
    for a, b in zip(z_s, z_c, strict=True):
        if form == "literal":
            values.append(float(sum(abs(x * y) / (abs(x) * abs(y)) for x, y in zip(a, b, strict=True) if x and y)))
            continue
        norms = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b))
        dot = [x * y for x, y in zip(a, b, strict=True)]
        top = abs(sum(dot)) if form == "abs_cos" else sum(abs(v) for v in dot)
        values.append(float(top / norms) if norms else 0.0)
    return sum(values) / len(values)


# --- by hand ---------------------------------------------------------------------------------------


def test_semantic_contrast_by_hand() -> None:
    # tau = 1, all vectors along the axes. Sample (1, 0) of class 0, G^0 = (2, 0), G^1 = (0, 1), z_s = (0, 3),
    # P-bar = (-1, 0): similarities 1, 0, 0, -1, so -log(e / (e + 1 + 1 + 1/e)).
    e = math.e
    loss = terms.semantic_contrast(
        torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]),
        1.0, style=torch.tensor([[0.0, 3.0]]), centre=torch.tensor([-1.0, 0.0]),
    )  # fmt: skip
    assert float(loss) == pytest.approx(-math.log(e / (e + 2 + 1 / e)), rel=1e-6)


def test_style_contrast_by_hand() -> None:
    # tau = 0.5: z_s = (1, 1), P^1 = (1, 0) at cosine 1/sqrt(2), P^0 = (0, 1) at the same, z_c = (1, 1) at 1,
    # G-bar = (1, -1) at 0.
    half = math.exp(2 / math.sqrt(2))
    loss = terms.style_contrast(
        torch.tensor([[1.0, 1.0]]), 1, torch.tensor([[0.0, 1.0], [1.0, 0.0]]), 0.5,
        semantic=torch.tensor([[1.0, 1.0]]), centre=torch.tensor([1.0, -1.0]),
    )  # fmt: skip
    assert float(loss) == pytest.approx(-math.log(half / (2 * half + math.exp(2) + 1)), rel=1e-6)


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        # First sample: cosine of (3, -4) and (3, 4) is (9 - 16) / 25; the sum of magnitudes 25 / 25; two units
        # are alive in both. Second: orthogonal, nothing in common.
        ("abs_cos", (7 / 25 + 0) / 2),
        ("sum_abs", (25 / 25 + 0) / 2),
        ("literal", (2 + 0) / 2),
    ],
)
def test_decoupling_by_hand(form: Form, answer: float) -> None:
    z_s, z_c = torch.tensor([[3.0, -4.0], [2.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 5.0]])
    assert float(terms.decoupling(z_s, z_c, form)) == pytest.approx(answer, rel=1e-6)


# --- against loops ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.07, 0.5, 1.0])
@pytest.mark.parametrize("style", [True, False])
@pytest.mark.parametrize("centre", [True, False])
def test_semantic_contrast_against_loops(centre: bool, style: bool, tau: float) -> None:
    for seed in range(3):
        labels = [3, 0, 2]  # class 1 has no prototype, and they are not in order
        z_c, z_s, g, mean = drawn(seed, B, D), drawn(seed + 1, B, D), drawn(seed + 2, 3, D), drawn(seed + 3, D)
        y = [0, 1, 2, 3, 1, 2]
        got = terms.semantic_contrast(
            z_c,
            torch.tensor(y),
            g,
            torch.tensor(labels),
            tau,
            style=z_s if style else None,
            centre=mean if centre else None,
        )
        expected = slow_semantic(
            as64(z_c), y, dict(zip(labels, as64(g), strict=True)), tau,
            as64(z_s) if style else None, as64(mean) if centre else None,
        )  # fmt: skip
        assert float(got) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("semantic", [True, False])
@pytest.mark.parametrize("centre", [True, False])
def test_style_contrast_against_loops(number: int, centre: bool, semantic: bool) -> None:
    z_s, z_c, p, mean = drawn(0, B, D), drawn(1, B, D), drawn(2, number, D), drawn(3, D)
    for j in range(number):
        got = terms.style_contrast(z_s, j, p, TAU, semantic=z_c if semantic else None, centre=mean if centre else None)
        expected = slow_style(
            as64(z_s), j, as64(p), TAU, as64(z_c) if semantic else None, as64(mean) if centre else None
        )
        assert float(got) == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("form", ["abs_cos", "sum_abs", "literal"])
def test_decoupling_against_loops(form: Form) -> None:
    for seed in range(5):
        z_s, z_c = drawn(seed, B, D), drawn(seed + 10, B, D)
        z_s[0, 0] = z_c[1, 1] = z_s[2, 2] = z_c[2, 2] = 0
        got = float(terms.decoupling(z_s, z_c, form))
        assert got == pytest.approx(slow_decoupling(as64(z_s), as64(z_c), form), rel=1e-5)


def test_forms_agree_where_no_feature_is_negative() -> None:
    z_s, z_c = drawn(0, B, D).relu(), drawn(1, B, D).relu()
    assert float(terms.decoupling(z_s, z_c, "abs_cos")) == pytest.approx(float(terms.decoupling(z_s, z_c, "sum_abs")))


# --- what they are for -----------------------------------------------------------------------------


def test_contrast_is_smallest_where_the_paper_wants_it() -> None:
    # Class 0 at the first axis, class 1 at the second, style at the third.
    eye = torch.eye(3)
    g, labels = eye[:2], torch.tensor([0, 1])

    def loss(z_c: Tensor) -> float:
        return float(
            terms.semantic_contrast(z_c[None], torch.tensor([0]), g, labels, TAU, style=eye[2:], centre=eye[2])
        )

    assert loss(eye[0]) < loss(eye[0] + eye[2]) < loss(eye[2])
    assert loss(eye[0]) < loss(eye[1])
    assert loss(5 * eye[0]) == pytest.approx(loss(eye[0]))  # length does not matter


def test_literal_decoupling_has_no_gradient_and_the_others_have() -> None:
    for form, moves in (("literal", False), ("abs_cos", True), ("sum_abs", True)):
        z_s, z_c = drawn(0, B, D).requires_grad_(), drawn(1, B, D).requires_grad_()
        grads = torch.autograd.grad(terms.decoupling(z_s, z_c, form), [z_s, z_c])  # type: ignore[arg-type]
        assert all(bool(grad.any()) is moves for grad in grads), form


def test_gradients_reach_both_features() -> None:
    z_c, z_s = drawn(0, B, D).requires_grad_(), drawn(1, B, D).requires_grad_()
    g, labels, y = drawn(2, K, D), torch.arange(K), torch.tensor([0, 1, 2, 3, 0, 1])
    for loss in (
        terms.semantic_contrast(z_c, y, g, labels, TAU, style=z_s, centre=g[0]),
        terms.style_contrast(z_s, 1, g[:J], TAU, semantic=z_c, centre=g[0]),
    ):
        for grad in torch.autograd.grad(loss, [z_c, z_s]):
            assert grad.isfinite().all()
            assert grad.any(dim=1).all()


def test_gradient_against_differences() -> None:
    for seed in range(3):
        z_c, z_s, g, mean = drawn(seed, B, D), drawn(seed + 1, B, D), drawn(seed + 2, K, D), drawn(seed + 3, D)
        y = [0, 1, 2, 3, 0, 1]
        leaf = z_c.clone().requires_grad_()
        loss = terms.semantic_contrast(leaf, torch.tensor(y), g, torch.arange(K), TAU, style=z_s, centre=mean)
        (grad,) = torch.autograd.grad(loss, leaf)
        prototypes = dict(enumerate(as64(g)))
        numerical, base, step = np.zeros((B, D)), as64(z_c), 1e-6
        for place in np.ndindex(B, D):
            up, down = base.copy(), base.copy()
            up[place] += step
            down[place] -= step
            one, other = (slow_semantic(moved, y, prototypes, TAU, as64(z_s), as64(mean)) for moved in (up, down))
            numerical[place] = (one - other) / (2 * step)
        np.testing.assert_allclose(as64(grad), numerical, rtol=1e-3, atol=1e-5)


# --- edges -----------------------------------------------------------------------------------------


def test_batch_without_any_prototype_gives_zero_and_no_gradient() -> None:
    z_c = drawn(0, B, D).requires_grad_()
    for g, labels in ((drawn(1, 2, D), torch.tensor([2, 3])), (torch.zeros(0, D), torch.zeros(0, dtype=torch.int64))):
        loss = terms.semantic_contrast(z_c, torch.zeros(B, dtype=torch.int64), g, labels, TAU, style=drawn(2, B, D))
        (grad,) = torch.autograd.grad(loss, z_c)
        assert float(loss.detach()) == 0
        assert not grad.any()


def test_one_cluster_and_no_other_negative_leaves_nothing_to_learn() -> None:
    z_s = drawn(0, B, D).requires_grad_()
    loss = terms.style_contrast(z_s, 0, drawn(1, 1, D), TAU)
    (grad,) = torch.autograd.grad(loss, z_s)
    assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(grad, torch.zeros_like(grad), atol=1e-6, rtol=0)


@pytest.mark.parametrize("form", ["abs_cos", "sum_abs", "literal"])
@pytest.mark.parametrize("who", ["style", "semantic", "both"])
def test_features_of_length_zero(who: str, form: Form) -> None:
    z_c, z_s = drawn(0, B, D), drawn(1, B, D)
    if who != "semantic":
        z_s[:] = 0
    if who != "style":
        z_c[0] = 0
    z_c.requires_grad_()
    z_s.requires_grad_()
    g = torch.cat([drawn(2, K - 1, D), torch.zeros(1, D)])  # a dead prototype as well
    total = (
        terms.semantic_contrast(z_c, torch.arange(B) % K, g, torch.arange(K), TAU, style=z_s, centre=g[K - 1])
        + terms.style_contrast(z_s, K - 1, g, TAU, semantic=z_c, centre=g.mean(dim=0))
        + terms.decoupling(z_s, z_c, form)
    )
    assert total.isfinite()
    for grad in torch.autograd.grad(total, [z_c, z_s]):
        assert grad.isfinite().all()


def test_one_sample() -> None:
    z_c, z_s, g = drawn(0, 1, D), drawn(1, 1, D), drawn(2, K, D)
    got = float(terms.semantic_contrast(z_c, torch.tensor([2]), g, torch.arange(K), TAU, style=z_s))
    assert got == pytest.approx(slow_semantic(as64(z_c), [2], dict(enumerate(as64(g))), TAU, as64(z_s)), rel=1e-5)


@pytest.mark.parametrize("tau", [1e-3, 0.5])
def test_large_similarities_do_not_overflow(tau: float) -> None:
    z_c = 1e4 * drawn(0, B, D)
    g = torch.cat([-z_c[:1], z_c[:1]])
    loss = terms.semantic_contrast(z_c[:1], torch.tensor([0]), g, torch.tensor([0, 1]), tau, style=z_c[:1])
    # The positive at cosine -1, two negatives at 1: log(1 + 2 exp(2 / tau)).
    assert float(loss) == pytest.approx(float(np.logaddexp(0, math.log(2) + 2 / tau)), rel=1e-5)


@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-3, 1.0, 1e3]), b=st.integers(1, 5), j=st.integers(1, 4))
@settings(max_examples=40)
def test_values_stay_between_their_bounds(seed: int, scale: float, b: int, j: int) -> None:
    z_c, z_s, p = scale * drawn(seed, b, D), scale * drawn(seed + 1, b, D), drawn(seed + 2, j, D)
    contrast = float(terms.style_contrast(z_s, 0, p, TAU, semantic=z_c, centre=p.mean(dim=0)))
    # All similarities lie between -1 / tau and 1 / tau, and there are j + 1 negatives.
    assert 0 < contrast <= math.log(1 + (j + 1) * math.exp(2 / TAU)) + 1e-4
    cosine, magnitudes, number = (float(terms.decoupling(z_s, z_c, form)) for form in ("abs_cos", "sum_abs", "literal"))
    assert 0 <= cosine <= magnitudes + 1e-6
    assert magnitudes <= 1 + 1e-5
    assert number == D


@pytest.mark.parametrize("form", ["abs_cos", "sum_abs", "literal"])
def test_float32_inside_autocast(form: Form) -> None:
    z_c, z_s, g = drawn(0, B, D), drawn(1, B, D), drawn(2, K, D)

    def every() -> list[Any]:
        return [
            terms.semantic_contrast(z_c, torch.arange(B) % K, g, torch.arange(K), TAU, style=z_s, centre=g[0]),
            terms.style_contrast(z_s, 1, g, TAU, semantic=z_c, centre=g[0]),
            terms.decoupling(z_s, z_c, form),
        ]

    plain = every()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = every()
    for one, other in zip(plain, cast, strict=True):
        assert other.dtype == torch.float32
        assert torch.equal(one, other)
