"""Loss terms of FedSeProto against slow loops in float64, and against answers worked out by hand."""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Float, as64, drawn, gradient, labels, numerical_gradient
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


def test_gaussian_kl_by_hand() -> None:
    # N(0, 1): 0. Mean 2, variance 1: 4/2 = 2. Mean 0, variance e: (e - 1 - 1)/2. Mean of the three over 3 values.
    mean, log_variance = torch.tensor([[0.0, 2.0, 0.0]]), torch.tensor([[0.0, 0.0, 1.0]])
    assert float(eq.gaussian_kl(mean, log_variance)) == pytest.approx((2 + (math.e - 2) / 2) / 3, rel=1e-6)


def test_gaussian_kl_is_what_torch_says() -> None:
    mean, log_variance = drawn(0, B, D), drawn(1, B, D)
    ours = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    prior = torch.distributions.Normal(torch.zeros(B, D), torch.ones(B, D))
    wanted = torch.distributions.kl_divergence(ours, prior).mean()
    torch.testing.assert_close(eq.gaussian_kl(mean, log_variance), wanted)


@pytest.mark.parametrize("b", [1, B])
@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("seed", range(3))
def test_gaussian_kl_against_loops(seed: int, over: eq.Reduction, b: int) -> None:
    mean, log_variance = drawn(seed, b, D), drawn(seed + 50, b, D)
    slow = slow_gaussian_kl(as64(mean), as64(log_variance), over)
    assert float(eq.gaussian_kl(mean, log_variance, over)) == pytest.approx(slow, rel=1e-5)
    np.testing.assert_allclose(
        gradient(lambda x: eq.gaussian_kl(mean, x, over), log_variance).numpy(),
        numerical_gradient(lambda x: slow_gaussian_kl(as64(mean), x, over), log_variance), rtol=1e-3, atol=1e-6,
    )  # fmt: skip


def test_sum_is_the_divergence_of_the_whole_code_as_torch_has_it() -> None:
    mean, log_variance = drawn(0, B, D), drawn(1, B, D)
    ours, prior = (
        torch.distributions.MultivariateNormal(m, torch.diag_embed(v))
        for m, v in ((mean, log_variance.exp()), (torch.zeros(B, D), torch.ones(B, D)))
    )
    wanted = torch.distributions.kl_divergence(ours, prior).mean()
    torch.testing.assert_close(eq.gaussian_kl(mean, log_variance, "sum"), wanted)


def test_moment_kl_by_hand() -> None:
    # First dimension 1, 3: mean 2, variance 1: (4 + 1 - 0 - 1)/2 = 2. Second -1, 1: mean 0, variance 1: 0.
    assert float(eq.moment_kl(torch.tensor([[1.0, -1.0], [3.0, 1.0]]))) == pytest.approx(1, abs=1e-5)


def test_moment_kl_of_one_sample_has_the_part_of_the_mean_alone() -> None:
    # (9 + 16) / 2 / 2 dimensions.
    z = torch.tensor([[3.0, 4.0]])
    assert float(eq.moment_kl(z)) == 6.25
    assert gradient(eq.moment_kl, z).tolist() == [[1.5, 2.0]]


def test_moment_kl_of_equal_samples_is_finite_and_does_not_move_them_apart() -> None:
    # Variance 0: -log(1e-6)/2 - 1/2 on top; at the minimum of v its gradient is zero.
    z = torch.zeros(4, 2)
    assert float(eq.moment_kl(z)) == pytest.approx((-math.log(1e-6) - 1) / 2, rel=1e-5)
    assert torch.equal(gradient(eq.moment_kl, z), z)


@pytest.mark.parametrize("b", [1, 2, B])
@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("seed", range(3))
def test_moment_kl_against_loops(seed: int, over: eq.Reduction, b: int) -> None:
    z = drawn(seed, b, D)
    assert float(eq.moment_kl(z, over)) == pytest.approx(slow_moment_kl(as64(z), over), rel=1e-4)
    np.testing.assert_allclose(
        gradient(lambda x: eq.moment_kl(x, over), z).numpy(),
        numerical_gradient(lambda x: slow_moment_kl(x, over), z), rtol=2e-2, atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("over", OVER)
def test_squared_norm_is_the_gaussian_kl_with_variance_one(over: eq.Reduction) -> None:
    z = drawn(0, B, D)
    by = B if over == "sum" else B * D
    assert float(eq.squared_norm(z, over)) == pytest.approx(sum(v**2 for v in as64(z).flat) / 2 / by, rel=1e-5)
    torch.testing.assert_close(eq.squared_norm(z, over), eq.gaussian_kl(z, torch.zeros(B, D), over))


def test_reconstruction_is_the_mean_over_all_values() -> None:
    # Every value is off by 1/2.
    assert float(eq.reconstruction(torch.ones(3, 3, 4, 4), torch.full((3, 3, 4, 4), 0.5))) == 0.25
    x, decoded = drawn(0, 2, 3, 4, 4), drawn(1, 2, 3, 4, 4)
    slow = np.mean([np.mean((as64(x)[i] - as64(decoded)[i]) ** 2) for i in range(2)])
    assert float(eq.reconstruction(x, decoded)) == pytest.approx(float(slow), rel=1e-5)


# --- Eq. 11 ----------------------------------------------------------------------------------------


def test_distillation_by_hand() -> None:
    # Teacher (1/2, 1/2), semantic the same, domain (1/4, 3/4): s1 = 0,
    # s2 = (log 2 + log 2/3)/2 = log(4/3)/2, e^s2 = sqrt(4/3). Corrected log(1 + sqrt(3)/2), printed log(1 + 2/sqrt(3)).
    teacher, domain = torch.zeros(1, 2), torch.tensor([[0.0, math.log(3)]])
    for form, answer in (("corrected", math.log(1 + math.sqrt(3) / 2)), ("printed", math.log(1 + 2 / math.sqrt(3)))):
        loss = eq.distillation(
            teacher, teacher, domain, temperature=1, form=form, direction="teacher_student"  # type: ignore[arg-type]
        )  # fmt: skip
        assert float(loss) == pytest.approx(answer, rel=1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("seed", range(2))
def test_distillation_against_loops(form: Form, direction: Direction, temperature: float, seed: int) -> None:
    t, s, d = (drawn(seed + 10 * i, B, C) for i in range(3))

    def loss(semantic: Tensor, domain: Tensor) -> Tensor:
        return eq.distillation(t, semantic, domain, temperature=temperature, form=form, direction=direction)

    def slow(semantic: Float, domain: Float) -> float:
        return slow_distillation(as64(t), semantic, domain, temperature, form, direction)

    assert float(loss(s, d)) == pytest.approx(slow(as64(s), as64(d)), rel=1e-5)
    for grad, wanted in (
        (gradient(lambda x: loss(x, d), s), numerical_gradient(lambda x: slow(x, as64(d)), s)),
        (gradient(lambda x: loss(s, x), d), numerical_gradient(lambda x: slow(as64(s), x), d)),
    ):
        np.testing.assert_allclose(grad.numpy(), wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_corrected_form_moves_the_semantic_output_to_the_teacher_and_the_printed_one_away(direction: Direction) -> None:
    """A1: the sign of Eq. 11."""
    t, s, d = (drawn(i, B, C) for i in range(3))

    def step(form: Form) -> tuple[Tensor, Tensor]:
        def loss(a: Tensor, b: Tensor) -> Tensor:
            return eq.distillation(t, a, b, temperature=1, form=form, direction=direction)

        return s - 0.1 * gradient(lambda x: loss(x, d), s), d - 0.1 * gradient(lambda x: loss(s, x), d)

    def far(logits: Tensor) -> float:
        pairs = [(softmax(as64(t)[i]), softmax(as64(logits)[i])) for i in range(B)]
        return sum(slow_kl(p, q) if direction == "teacher_student" else slow_kl(q, p) for p, q in pairs)

    semantic, domain = step("corrected")
    assert far(semantic) < far(s) and far(domain) > far(d)
    semantic, domain = step("printed")
    assert far(semantic) > far(s) and far(domain) < far(d)


def test_distillation_of_equal_outputs_is_log_two() -> None:
    t, s = drawn(0, B, C), drawn(1, B, C)
    for form in FORMS:
        loss = eq.distillation(t, s, s, temperature=1, form=form, direction="teacher_student")
        assert float(loss) == pytest.approx(math.log(2), rel=1e-6)


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


def test_prototype_distance_by_hand() -> None:
    # Class 0: distances^2 1 and 9, class 1: 4, all to the origin, D = 2; class 2 has no prototype.
    z, y = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [9.0, 9.0]]), torch.tensor([0, 0, 1, 2])
    present = torch.tensor([True, True, False])
    # Samples: (1 + 9 + 4)/2/3 = 7/3. Classes: (5/2 + 4/2)/2 = 9/4.
    for reduction, answer in zip(REDUCTIONS, (7 / 3, 9 / 4), strict=True):
        loss = eq.prototype_distance(z, y, torch.zeros(3, 2), present, reduction=reduction)
        assert float(loss) == pytest.approx(answer, rel=1e-6)
        summed = eq.prototype_distance(z, y, torch.zeros(3, 2), present, reduction=reduction, dimensions="sum")
        assert float(summed) == pytest.approx(2 * answer, rel=1e-6)  # D = 2


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

    assert float(loss(z)) == pytest.approx(slow(as64(z)), rel=1e-5)
    np.testing.assert_allclose(gradient(loss, z).numpy(), numerical_gradient(slow, z), rtol=1e-3, atol=1e-5)


@given(y=st.lists(st.integers(0, C - 1), min_size=1, max_size=9), seed=st.integers(0, 10**6))
@settings(max_examples=50)
def test_both_reductions_are_the_same_where_classes_are_equally_large(y: list[int], seed: int) -> None:
    z, c_g, every = drawn(seed, 2 * len(set(y)), D), drawn(seed + 1, C, D), torch.ones(C, dtype=torch.bool)
    of = torch.tensor(sorted(set(y)) * 2)
    by = [eq.prototype_distance(z, of, c_g, every, reduction=reduction) for reduction in REDUCTIONS]
    torch.testing.assert_close(by[0], by[1])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_prototype_distance_without_any_prototype_is_zero(reduction: Reduction) -> None:
    def loss(z: Tensor) -> Tensor:
        return eq.prototype_distance(
            z, labels(0, B, C), torch.zeros(C, D), torch.zeros(C, dtype=torch.bool), reduction=reduction
        )

    assert float(loss(drawn(0, B, D))) == 0
    assert not gradient(loss, drawn(0, B, D)).any()


# --- number formats, zeros, one sample -------------------------------------------------------------


def every_term(cast: Callable[[Tensor], Tensor], b: int = B, scale: float = 1.0) -> dict[str, tuple[Tensor, Tensor]]:
    """Each term's value, and its gradient with respect to what it trains."""
    y, present = labels(7, b, C), torch.ones(C, dtype=torch.bool)
    c_g, teacher, domain = cast(drawn(8, C, D)), cast(drawn(9, b, C)), cast(drawn(10, b, C))
    terms: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
        "gaussian": (lambda x: eq.gaussian_kl(x, x.clamp(-10, 10)), drawn(1, b, D)),
        "moment": (eq.moment_kl, drawn(2, b, D)),
        "l2": (eq.squared_norm, drawn(3, b, D)),
        "reconstruction": (lambda x: eq.reconstruction(torch.ones_like(x), x), drawn(4, b, 3, 2, 2)),
    }
    for form in FORMS:
        for direction in DIRECTIONS:
            options: dict[str, Any] = {"temperature": 2.0, "form": form, "direction": direction}
            terms[f"kd {form} {direction}"] = (
                lambda x, options=options: eq.distillation(teacher, x, domain, **options),  # type: ignore[misc]
                drawn(5, b, C),
            )
    for reduction in REDUCTIONS:
        terms[f"proto {reduction}"] = (
            lambda x, reduction=reduction: eq.prototype_distance(x, y, c_g, present, reduction=reduction),  # type: ignore[misc]
            drawn(6, b, D),
        )
    content = {}
    for name, (loss, x) in terms.items():
        given = cast(scale * x)
        content[name] = (loss(given), gradient(loss, given))
    return content


@pytest.mark.parametrize("b", [1, 2, B])
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1.0, 100.0])
def test_values_and_gradients_are_finite(b: int, scale: float) -> None:
    for name, (value, grad) in every_term(lambda x: x, b, scale).items():
        assert value.shape == () and value.isfinite(), name
        assert float(value) >= -1e-6, name
        assert grad.isfinite().all(), name


def test_bf16_input_is_computed_in_float32_inside_autocast_too() -> None:
    wide = every_term(lambda x: x.bfloat16().float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = every_term(lambda x: x.bfloat16())
    for name, (value, _) in narrow.items():
        assert value.dtype == torch.float32, name
        torch.testing.assert_close(value, wide[name][0], rtol=1e-6, atol=1e-7, msg=name)
