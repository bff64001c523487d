"""FedProto's terms against slow loops in float64, and against answers worked out by hand."""

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Float, as64, drawn, labels

from fedshift_clients.losses import prototypes as fedproto

Reduction = Literal["mse_mean", "sum"]
REDUCTIONS: tuple[Reduction, Reduction] = ("mse_mean", "sum")
B, C, D = 9, 4, 5


def slow_distance(z: Float, y: list[int], g: Float, present: list[bool], reduction: str) -> float:
    values = []
    for i in range(len(y)):
        if present[y[i]]:
            squares = [(z[i][d] - g[y[i]][d]) ** 2 for d in range(z.shape[1])]
            values.append(sum(squares) if reduction == "sum" else sum(squares) / len(squares))
    return float(sum(values) / len(values)) if values else 0.0


@pytest.mark.parametrize("reduction", REDUCTIONS)
@given(seed=st.integers(0, 10**6), b=st.integers(1, B), mask=st.lists(st.booleans(), min_size=C, max_size=C))
@settings(max_examples=40)
def test_distance_against_loops(reduction: Reduction, seed: int, b: int, mask: list[bool]) -> None:
    z, g, y, present = drawn(seed, b, D), drawn(seed + 1, C, D), labels(seed, b, C), torch.tensor(mask)
    got = fedproto.prototype_distance(z, y, g, present, reduction=reduction)
    assert float(got) == pytest.approx(slow_distance(as64(z), y.tolist(), as64(g), mask, reduction), rel=1e-5)


@pytest.mark.parametrize(("reduction", "answer"), [("sum", 16.5), ("mse_mean", 8.25)])
def test_distance_by_hand(reduction: Reduction, answer: float) -> None:
    # Class 0 at (1, 1), class 1 at (0, -2), class 2 nowhere. Samples: (4, 5) of 0 is (3, 4) away, squared 25;
    # (2, 0) of 1 is (2, 2) away, squared 8; the one of class 2 is left out. (25 + 8) / 2 = 16.5, by D = 2: 8.25.
    z = torch.tensor([[4.0, 5], [2, 0], [100, 100]])
    g = torch.tensor([[1.0, 1], [0, -2], [7, 7]])
    got = fedproto.prototype_distance(
        z, torch.tensor([0, 1, 2]), g, torch.tensor([True, True, False]), reduction=reduction
    )
    assert float(got) == pytest.approx(answer)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_gradient_is_twice_the_difference_over_the_number_of_samples(reduction: Reduction) -> None:
    z, g, y = drawn(0, B, D).requires_grad_(), drawn(1, C, D), labels(0, B, C)
    present = torch.tensor([True, False, True, True])
    fedproto.prototype_distance(z, y, g, present, reduction=reduction).backward()  # type: ignore[no-untyped-call]
    number = sum(bool(present[k]) for k in y) * (D if reduction == "mse_mean" else 1)
    expected = np.stack([
        2 * (as64(z)[i] - as64(g)[y[i]]) / number if present[y[i]] else np.zeros(D) for i in range(B)
    ])  # fmt: skip
    assert z.grad is not None
    np.testing.assert_allclose(z.grad.numpy(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nobody_has_a_prototype(reduction: Reduction) -> None:
    z = drawn(0, B, D).requires_grad_()
    loss = fedproto.prototype_distance(
        z, labels(0, B, C), drawn(1, C, D), torch.zeros(C, dtype=torch.bool), reduction=reduction
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == 0
    assert z.grad is not None and not z.grad.any()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_zero_features_and_a_feature_on_its_prototype(reduction: Reduction) -> None:
    g = drawn(1, C, D)
    for z in (torch.zeros(1, D), g[2:3].clone()):
        leaf = z.requires_grad_()
        loss = fedproto.prototype_distance(
            leaf, torch.tensor([2]), g, torch.ones(C, dtype=torch.bool), reduction=reduction
        )
        loss.backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None and leaf.grad.isfinite().all() and loss.isfinite()
    assert float(loss.detach()) == 0


def test_distance_is_float32_under_autocast() -> None:
    z, g, y, present = drawn(0, B, D), drawn(1, C, D), labels(0, B, C), torch.ones(C, dtype=torch.bool)
    plain = fedproto.prototype_distance(z, y, g, present, reduction="sum")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = fedproto.prototype_distance(z, y, g, present, reduction="sum")
        near = fedproto.nearness(z, g, present)
    assert torch.equal(plain, inside)
    assert torch.equal(near, fedproto.nearness(z, g, present))
    assert inside.dtype == near.dtype == torch.float32


# --- the nearest prototype -------------------------------------------------------------------------


@given(seed=st.integers(0, 10**6), mask=st.lists(st.booleans(), min_size=C, max_size=C).filter(any))
@settings(max_examples=40)
def test_nearness_against_loops(seed: int, mask: list[bool]) -> None:
    z, g = drawn(seed, B, D), drawn(seed + 1, C, D)
    got = fedproto.nearness(z, g, torch.tensor(mask))
    assert got.shape == (B, C) and got.isfinite().all()
    for i in range(B):
        far = {k: sum((as64(z)[i][d] - as64(g)[k][d]) ** 2 for d in range(D)) for k in range(C) if mask[k]}
        for k in range(C):
            expected = far[k] if mask[k] else max(far.values()) + 1
            assert float(got[i, k]) == pytest.approx(-expected, rel=1e-4, abs=1e-5)
        assert mask[int(got[i].argmax())]


def test_nearest_by_hand() -> None:
    # From (1, 0): class 0 at (3, 0) is 4 away, class 1 at (1, 1) is 1 away, class 2, which sits on the spot,
    # has no prototype and counts as 4 + 1.
    g = torch.tensor([[3.0, 0], [1, 1], [1, 0]])
    got = fedproto.nearness(torch.tensor([[1.0, 0]]), g, torch.tensor([True, True, False]))
    assert got.tolist() == [[-4, -1, -5]]


def test_small_distances_far_from_the_origin_do_not_cancel() -> None:
    g = torch.tensor([[1000.0, 1000.0], [1000.0, 1000.25]])
    got = fedproto.nearness(torch.tensor([[1000.0, 1000.125 + 0.0625]]), g, torch.ones(2, dtype=torch.bool))
    np.testing.assert_allclose(got.numpy(), [[-(0.1875**2), -(0.0625**2)]], rtol=1e-5)
