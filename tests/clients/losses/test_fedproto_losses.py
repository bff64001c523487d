"""FedProto's terms against slow loops in float64."""

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from method_cases import check_term
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
@pytest.mark.parametrize("mask", [[True] * C, [True, False, True, False]])
def test_distance_and_its_gradient_against_loops(reduction: Reduction, mask: list[bool]) -> None:
    z, g, y, present = drawn(0, B, D), drawn(1, C, D), labels(0, B, C), torch.tensor(mask)
    check_term(
        lambda x: fedproto.prototype_distance(x, y, g, present, reduction=reduction),
        lambda x: slow_distance(x, y.tolist(), as64(g), mask, reduction),
        z,
    )


# --- the nearest prototype -------------------------------------------------------------------------


@given(seed=st.integers(0, 10**6), mask=st.lists(st.booleans(), min_size=C, max_size=C).filter(any))
@settings(max_examples=40)
def test_nearness_against_loops(seed: int, mask: list[bool]) -> None:
    z, g = drawn(seed, B, D), drawn(seed + 1, C, D)
    got = fedproto.nearness(z, g, torch.tensor(mask))
    for i in range(B):
        far = {k: sum((as64(z)[i][d] - as64(g)[k][d]) ** 2 for d in range(D)) for k in range(C) if mask[k]}
        for k in range(C):
            expected = far[k] if mask[k] else max(far.values()) + 1
            assert float(got[i, k]) == pytest.approx(-expected, rel=1e-4, abs=1e-5)
        assert mask[int(got[i].argmax())]


def test_small_distances_far_from_the_origin_do_not_cancel() -> None:
    g = torch.tensor([[1000.0, 1000.0], [1000.0, 1000.25]])
    got = fedproto.nearness(torch.tensor([[1000.0, 1000.125 + 0.0625]]), g, torch.ones(2, dtype=torch.bool))
    np.testing.assert_allclose(got.numpy(), [[-(0.1875**2), -(0.0625**2)]], rtol=1e-5)
