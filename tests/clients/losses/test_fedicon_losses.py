"""The contrasts of FedICON against slow double loops in float64, and against answers worked out by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Float, as64, numerical_gradient
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


# --- against loops ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.07, 0.5, 2.0])
def test_supervised_contrast_against_loops(tau: float) -> None:
    for seed in range(4):
        first, second = views(seed)
        y = torch.randint(0, C, (B,), generator=torch.Generator().manual_seed(seed + 100))
        expected = slow_supervised(as64(first), as64(second), y.tolist(), tau)
        assert float(supervised_contrast(first, second, y, tau)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("tau", [0.07, 0.5, 2.0])
def test_instance_contrast_against_loops(tau: float) -> None:
    for seed in range(4):
        first, second = views(seed)
        expected = slow_instance(as64(first), as64(second), tau)
        assert float(instance_contrast(first, second, tau)) == pytest.approx(expected, rel=1e-4)


@given(seed=st.integers(0, 10**6), b=st.integers(1, 7), d=st.integers(1, 6), tau=st.sampled_from([0.07, 0.3, 1.0]))
@settings(max_examples=40)
def test_any_shape_against_loops(seed: int, b: int, d: int, tau: float) -> None:
    first, second = views(seed, b, d)
    y = torch.randint(0, C, (b,), generator=torch.Generator().manual_seed(seed))
    got = float(supervised_contrast(first, second, y, tau)), float(instance_contrast(first, second, tau))
    one, other = as64(first), as64(second)
    assert got[0] == pytest.approx(slow_supervised(one, other, y.tolist(), tau), rel=1e-4, abs=1e-5)
    assert got[1] == pytest.approx(slow_instance(one, other, tau), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("labelled", [True, False])
def test_gradient_against_differences(labelled: bool) -> None:
    first, second = views(1)
    y = [0, 1, 2, 0, 1, 0]
    leaf = first.clone().requires_grad_()
    loss = supervised_contrast(leaf, second, torch.tensor(y), 0.5) if labelled else instance_contrast(leaf, second, 0.5)
    (grad,) = torch.autograd.grad(loss, leaf)
    other = as64(second)

    def slow(moved: Float) -> float:
        return slow_supervised(moved, other, y, 0.5) if labelled else slow_instance(moved, other, 0.5)

    expected = numerical_gradient(slow, first, 1e-6)
    np.testing.assert_allclose(as64(grad), expected, rtol=1e-3, atol=1e-5)


# --- by hand ---------------------------------------------------------------------------------------


def test_two_samples_at_right_angles_by_hand() -> None:
    # Both views of sample 0 are (1, 0), both of sample 1 are (0, 1); tau 1. Each anchor sees its other view
    # at 1 and two strangers at 0: the positive has the share e / (e + 2).
    first = torch.tensor([[2.0, 0.0], [0.0, 3.0]])  # lengths do not matter
    other_view = -math.log(math.e / (math.e + 2))
    assert float(instance_contrast(first, first, 1.0)) == pytest.approx(other_view, rel=1e-6)
    assert float(supervised_contrast(first, first, torch.tensor([0, 1]), 1.0)) == pytest.approx(other_view, rel=1e-6)
    # Of one class, each has three positives, with the shares e, 1 and 1 of e + 2.
    of_one_class = (other_view + 2 * math.log(math.e + 2)) / 3
    assert float(supervised_contrast(first, first, torch.tensor([4, 4]), 1.0)) == pytest.approx(of_one_class, rel=1e-6)


def test_classes_apart_by_hand() -> None:
    # Classes a, a, b: class a lies on (1, 0), b on (0, 1), tau 1. An anchor of a has three positives at 1 and
    # two strangers at 0; each positive has the share e / (3 e + 2). An anchor of b: one positive, e / (e + 4).
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    e = math.e
    expected = (4 * -math.log(e / (3 * e + 2)) + 2 * -math.log(e / (e + 4))) / 6
    assert float(supervised_contrast(z, z, torch.tensor([0, 0, 1]), 1.0)) == pytest.approx(expected, rel=1e-6)


def test_without_two_samples_of_a_class_both_are_the_same() -> None:
    first, second = views(3)
    alone = supervised_contrast(first, second, torch.arange(B), 0.2)
    assert float(alone) == pytest.approx(float(instance_contrast(first, second, 0.2)), rel=1e-6)


# --- what must hold --------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_length_of_features_does_not_matter(scale: float) -> None:
    first, second = views(5)
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    for loss in (
        lambda a, b: supervised_contrast(a, b, y, 0.07),
        lambda a, b: instance_contrast(a, b, 0.07),
    ):
        assert float(loss(scale * first, second)) == pytest.approx(float(loss(first, second)), rel=1e-4)


def test_views_may_be_exchanged_and_samples_reordered() -> None:
    first, second = views(6)
    y, order = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([3, 1, 5, 0, 4, 2])
    assert torch.allclose(supervised_contrast(first, second, y, 0.1), supervised_contrast(second, first, y, 0.1))
    assert torch.allclose(
        supervised_contrast(first, second, y, 0.1),
        supervised_contrast(first[order], second[order], y[order], 0.1), rtol=1e-5,
    )  # fmt: skip
    assert torch.allclose(
        instance_contrast(first, second, 0.1), instance_contrast(first[order], second[order], 0.1), rtol=1e-5
    )


def test_one_sample_has_nothing_to_stand_out_from() -> None:
    first, second = views(7, 1)
    leaf = first.clone().requires_grad_()
    for loss in (instance_contrast(leaf, second, 0.07), supervised_contrast(leaf, second, torch.tensor([2]), 0.07)):
        (grad,) = torch.autograd.grad(loss, leaf)
        assert float(loss.detach()) == 0
        assert not grad.any()


@pytest.mark.parametrize("zeros", [1, B])
def test_zero_features_give_no_nan(zeros: int) -> None:
    first, second = views(8)
    first[:zeros], second[:zeros] = 0, 0
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    leaf = first.clone().requires_grad_()
    losses = supervised_contrast(leaf, second, y, 0.07), instance_contrast(leaf, second, 0.07)
    for loss in losses:
        (grad,) = torch.autograd.grad(loss, leaf)
        assert loss.isfinite() and grad.isfinite().all()
        assert grad.abs().max() < 1e8
    if zeros == B:  # all alike: each of the 2B - 1 others has the same share
        assert float(losses[0].detach()) == pytest.approx(math.log(2 * B - 1), rel=1e-5)


def test_equal_features_and_opposite_ones_are_finite_at_a_low_temperature() -> None:
    same = torch.ones(B, D)
    for first, second in ((same, same), (same, -same)):
        leaf = first.clone().requires_grad_()
        loss = instance_contrast(leaf, second, 0.01)
        (grad,) = torch.autograd.grad(loss, leaf)
        assert loss.isfinite() and grad.isfinite().all()


def test_bfloat16_autocast_changes_nothing() -> None:
    first, second = views(9)
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    plain = supervised_contrast(first, second, y, 0.07), instance_contrast(first, second, 0.07)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = supervised_contrast(first, second, y, 0.07), instance_contrast(first, second, 0.07)
    assert all(torch.equal(a, b) and b.dtype == torch.float32 for a, b in zip(plain, inside, strict=True))
    assert supervised_contrast(first.bfloat16(), second.bfloat16(), y, 0.07).dtype == torch.float32
