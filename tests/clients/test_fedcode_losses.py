"""Eqs 10 to 14 of FedCode against slow loops in float64."""

import math
from typing import Literal

import pytest
import torch
from method_cases import check_term
from support import Float, as64, drawn

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


# --- against loops ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "centre", "semantic"), [(1, True, False), (2, False, True), (5, True, True)])
def test_style_contrast_and_its_gradient_against_loops(number: int, centre: bool, semantic: bool) -> None:
    z_s, z_c, p = drawn(0, B, D), drawn(1, B, D) if semantic else None, drawn(2, number, D)
    mean = drawn(3, D) if centre else None
    others = (None if z_c is None else as64(z_c), None if mean is None else as64(mean))
    for j in range(number):
        check_term(
            lambda x, j=j: terms.style_contrast(x, j, p, TAU, semantic=z_c, centre=mean),  # type: ignore[misc]
            lambda x, j=j: slow_style(x, j, as64(p), TAU, *others),
            z_s,  # type: ignore[misc]
        )


@pytest.mark.parametrize("form", ["abs_cos", "sum_abs", "literal"])
def test_decoupling_against_loops(form: Form) -> None:
    for seed in range(2):
        z_s, z_c = drawn(seed, B, D), drawn(seed + 10, B, D)
        z_s[0, 0] = z_c[1, 1] = z_s[2, 2] = z_c[2, 2] = 0
        got = float(terms.decoupling(z_s, z_c, form))
        assert got == pytest.approx(slow_decoupling(as64(z_s), as64(z_c), form), rel=1e-5)


# --- what they are for -----------------------------------------------------------------------------


def test_literal_decoupling_has_no_gradient_and_the_others_have() -> None:
    for form, moves in (("literal", False), ("abs_cos", True), ("sum_abs", True)):
        z_s, z_c = drawn(0, B, D).requires_grad_(), drawn(1, B, D).requires_grad_()
        grads = torch.autograd.grad(terms.decoupling(z_s, z_c, form), [z_s, z_c])  # type: ignore[arg-type]
        assert all(bool(grad.any()) is moves for grad in grads), form


@pytest.mark.parametrize(
    ("style", "centre", "tau"), [(True, True, 0.07), (True, False, 0.5), (False, True, 0.5), (False, False, 1.0)]
)
def test_semantic_contrast_and_its_gradient_against_loops(style: bool, centre: bool, tau: float) -> None:
    classes, y = [3, 0, 2], [0, 1, 2, 3, 1, 2]  # class 1 has no prototype, and they are not in order
    z_c, z_s, g = drawn(0, B, D), drawn(1, B, D) if style else None, drawn(2, 3, D)
    mean = drawn(3, D) if centre else None
    others = (None if z_s is None else as64(z_s), None if mean is None else as64(mean))
    check_term(
        lambda x: terms.semantic_contrast(x, torch.tensor(y), g, torch.tensor(classes), tau, style=z_s, centre=mean),
        lambda x: slow_semantic(x, y, dict(zip(classes, as64(g), strict=True)), tau, *others),
        z_c,
    )
