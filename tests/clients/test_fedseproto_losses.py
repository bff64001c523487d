"""Loss terms of FedSeProto against slow loops in float64."""

import math
from typing import Literal

import numpy as np
import pytest
import torch
from method_cases import check_term
from support import Float, as64, drawn, gradient, labels
from torch import Tensor

from fedshift_clients.methods import fedseproto as eq

Form = Literal["corrected", "printed"]
Direction = Literal["teacher_student", "student_teacher"]
Reduction = Literal["sample_mean", "class_mean"]
FORMS: tuple[Form, Form] = ("corrected", "printed")
DIRECTIONS: tuple[Direction, Direction] = ("teacher_student", "student_teacher")
REDUCTIONS: tuple[Reduction, Reduction] = ("sample_mean", "class_mean")
OVER: tuple[eq.Reduction, eq.Reduction] = ("mean", "sum")
B, C, D = 7, 4, 5


# --- the slow versions -----------------------------------------------------------------------------


def slow_gaussian_kl(mu: Float, log_var: Float, over: eq.Reduction = "mean") -> float:
    """The mean over samples of the divergence, which is a sum over dimensions, or of its mean over them."""
    total = 0.0
    for i, j in np.ndindex(*mu.shape):
        total += 0.5 * (mu[i, j] ** 2 + math.exp(log_var[i, j]) - log_var[i, j] - 1)
    return total / len(mu) if over == "sum" else total / mu.size


def slow_moment_kl(z: Float, over: eq.Reduction = "mean") -> float:
    b, d = z.shape
    total = 0.0
    for j in range(d):
        m = sum(z[i, j] for i in range(b)) / b
        v = sum((z[i, j] - m) ** 2 for i in range(b)) / b
        total += 0.5 * m**2 if b == 1 else 0.5 * (m**2 + v - math.log(v + 1e-6) - 1)
    return total if over == "sum" else total / d


def softmax(row: Float) -> list[float]:
    e = [math.exp(value - max(row)) for value in row]
    return [value / sum(e) for value in e]


def slow_kl(p: list[float], q: list[float]) -> float:
    return min(50.0, sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True)))


def slow_distillation(t: Float, s: Float, d: Float, temperature: float, form: Form, direction: Direction) -> float:
    total = 0.0
    for i in range(len(t)):
        teacher, semantic, domain = (softmax(rows[i] / temperature) for rows in (t, s, d))
        if direction == "teacher_student":
            s1, s2 = slow_kl(teacher, semantic), slow_kl(teacher, domain)
        else:
            s1, s2 = slow_kl(semantic, teacher), slow_kl(domain, teacher)
        if form == "printed":  # Eq. 11 letter by letter
            total += -math.log(math.exp(s1) / (math.exp(s1) + math.exp(s2)))
        else:
            total += -math.log(math.exp(s2) / (math.exp(s1) + math.exp(s2)))
    return total / len(t)


def slow_prototype_distance(
    z: Float, y: list[int], c_g: Float, present: list[bool], reduction: Reduction, over: eq.Reduction = "mean"
) -> float:
    by_class: dict[int, list[float]] = {}
    for i, k in enumerate(y):
        if present[k]:
            norm = sum((z[i, j] - c_g[k, j]) ** 2 for j in range(z.shape[1]))
            by_class.setdefault(k, []).append(norm if over == "sum" else norm / z.shape[1])
    if not by_class:
        return 0.0
    if reduction == "class_mean":
        return sum(sum(values) / len(values) for values in by_class.values()) / len(by_class)
    every = [value for values in by_class.values() for value in values]
    return sum(every) / len(every)


# --- the divergences of Eq. 10 ---------------------------------------------------------------------


@pytest.mark.parametrize("b", [1, B])
@pytest.mark.parametrize("over", OVER)
def test_gaussian_kl_against_loops(over: eq.Reduction, b: int) -> None:
    mean, log_variance = drawn(0, b, D), drawn(50, b, D)
    check_term(lambda x: eq.gaussian_kl(mean, x, over), lambda x: slow_gaussian_kl(as64(mean), x, over), log_variance)


def test_moment_kl_of_equal_samples_is_finite_and_does_not_move_them_apart() -> None:
    # Variance 0: -log(1e-6)/2 - 1/2 on top; at the minimum of v its gradient is zero.
    z = torch.zeros(4, 2)
    assert float(eq.moment_kl(z)) == pytest.approx((-math.log(1e-6) - 1) / 2, rel=1e-5)
    assert torch.equal(gradient(eq.moment_kl, z), z)


@pytest.mark.parametrize("b", [1, 2, B])
@pytest.mark.parametrize("over", OVER)
def test_moment_kl_against_loops(over: eq.Reduction, b: int) -> None:
    check_term(lambda x: eq.moment_kl(x, over), lambda x: slow_moment_kl(x, over), drawn(0, b, D), slope=(2e-2, 1e-5))


@pytest.mark.parametrize("over", OVER)
def test_squared_norm_is_the_gaussian_kl_with_variance_one(over: eq.Reduction) -> None:
    z = drawn(0, B, D)
    by = B if over == "sum" else B * D
    assert float(eq.squared_norm(z, over)) == pytest.approx(sum(v**2 for v in as64(z).flat) / 2 / by, rel=1e-5)


def test_reconstruction_is_the_mean_over_all_values() -> None:
    x, decoded = drawn(0, 2, 3, 4, 4), drawn(1, 2, 3, 4, 4)
    slow = np.mean([np.mean((as64(x)[i] - as64(decoded)[i]) ** 2) for i in range(2)])
    assert float(eq.reconstruction(x, decoded)) == pytest.approx(float(slow), rel=1e-5)


# --- Eq. 11 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("temperature", [0.5, 4.0])
def test_distillation_against_loops(form: Form, direction: Direction, temperature: float) -> None:
    t, s, d = (drawn(10 * i, B, C) for i in range(3))

    def loss(semantic: Tensor, domain: Tensor) -> Tensor:
        return eq.distillation(t, semantic, domain, temperature=temperature, form=form, direction=direction)

    def slow(semantic: Float, domain: Float) -> float:
        return slow_distillation(as64(t), semantic, domain, temperature, form, direction)

    check_term(lambda x: loss(x, d), lambda x: slow(x, as64(d)), s)
    check_term(lambda x: loss(s, x), lambda x: slow(as64(s), x), d)


def test_distillation_leaves_the_teacher_alone() -> None:
    t, s, d = (drawn(i, B, C) for i in range(3))
    loss = eq.distillation(t.requires_grad_(), s, d, temperature=1, form="corrected", direction="teacher_student")
    assert not loss.requires_grad


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("form", FORMS)
def test_distillation_of_huge_logits_is_clamped(form: Form, direction: Direction) -> None:
    # Teacher and semantic agree that it is class 0, domain says class 1, all at 1e4: s1 = 0, s2 = 10^4 -> 50 (A2).
    one, other = torch.tensor([[1e4, 0.0]]), torch.tensor([[0.0, 1e4]])

    def loss(d: Tensor) -> Tensor:
        return eq.distillation(one, one, d, temperature=1, form=form, direction=direction)

    assert float(loss(other)) == pytest.approx(0 if form == "corrected" else 50, abs=1e-6)
    assert gradient(loss, other).isfinite().all()


# --- Eq. 13 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("seed", "missing"), [*enumerate([[], [1], [0, 2, 3]])])
def test_prototype_distance_against_loops(
    reduction: Reduction, missing: list[int], seed: int, over: eq.Reduction
) -> None:
    z, y, c_g = drawn(seed, B, D), labels(seed, B, C), drawn(seed + 90, C, D)
    present = [k not in missing for k in range(C)]

    def loss(x: Tensor) -> Tensor:
        return eq.prototype_distance(x, y, c_g, torch.tensor(present), reduction=reduction, dimensions=over)

    def slow(x: Float) -> float:
        return slow_prototype_distance(x, y.tolist(), as64(c_g), present, reduction, over)

    check_term(loss, slow, z)
