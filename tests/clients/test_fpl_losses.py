"""FPL's terms against slow loops in float64, and against answers worked out by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Float, as64, drawn, labels

from fedshift_clients import losses
from fedshift_clients.methods import fpl

B, C, D, P = 9, 4, 5, 7


def slow_unbiased(prototypes: Float, classes: list[int]) -> dict[int, Float]:
    content = {}
    for k in sorted(set(classes)):
        members = [prototypes[j] for j in range(len(classes)) if classes[j] == k]
        content[k] = np.sum(members, axis=0) / len(members)
    return content


def slow_contrast(z: Float, y: list[int], prototypes: Float, classes: list[int], tau: float) -> float:
    values = []
    for i in range(len(y)):
        s = [float(z[i] @ v) / (float(np.linalg.norm(z[i])) * float(np.linalg.norm(v))) for v in prototypes]
        positive = sum(math.exp(s[j] / tau) for j in range(len(s)) if classes[j] == y[i])
        if positive > 0:
            values.append(-math.log(positive / sum(math.exp(v / tau) for v in s)))
    return sum(values) / len(values) if values else 0.0


# --- U ---------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10**6), p=st.integers(1, P))
@settings(max_examples=40)
def test_unbiased_prototypes_against_loops(seed: int, p: int) -> None:
    prototypes, classes = drawn(seed, p, D), labels(seed, p, C)
    u, present = fpl.unbiased_prototypes(prototypes, classes, C)
    expected = slow_unbiased(as64(prototypes), classes.tolist())
    assert present.tolist() == [k in expected for k in range(C)]
    for k in range(C):
        np.testing.assert_allclose(u[k].numpy(), expected.get(k, np.zeros(D)), rtol=1e-4, atol=1e-6)


def test_a_cluster_counts_once_however_large() -> None:
    # Class 1 has the clusters (0, 4) and (2, 0): U = (1, 2), whether nine nodes stand behind one of them or one.
    u, present = fpl.unbiased_prototypes(torch.tensor([[0.0, 4], [9, 9], [2, 0]]), torch.tensor([1, 0, 1]), 3)
    assert u.tolist() == [[9, 9], [1, 2], [0, 0]]
    assert present.tolist() == [True, True, False]


def test_no_prototype_at_all() -> None:
    u, present = fpl.unbiased_prototypes(torch.zeros(0, D), torch.zeros(0, dtype=torch.int64), C)
    assert not present.any() and not u.any()


# --- UPCR ------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10**6), b=st.integers(1, B), p=st.integers(1, P))
@settings(max_examples=40)
def test_consistency_against_loops(seed: int, b: int, p: int) -> None:
    z, y, prototypes, classes = drawn(seed, b, D), labels(seed, b, C), drawn(seed + 1, p, D), labels(seed + 2, p, C)
    u = slow_unbiased(as64(prototypes), classes.tolist())
    values = [float(((as64(z)[i] - u[int(y[i])]) ** 2).mean()) for i in range(b) if int(y[i]) in u]
    got = fpl.unbiased_consistency(z, y, *fpl.unbiased_prototypes(prototypes, classes, C))
    assert float(got) == pytest.approx(sum(values) / len(values) if values else 0.0, rel=1e-4)


def test_consistency_by_hand() -> None:
    # U of class 1 is (1, 2). (4, 6) is (3, 4) away: 25 / 2 dimensions. Class 2 has none and is left out.
    unbiased = fpl.unbiased_prototypes(torch.tensor([[0.0, 4], [2, 0]]), torch.tensor([1, 1]), 3)
    got = fpl.unbiased_consistency(torch.tensor([[4.0, 6], [50, 50]]), torch.tensor([1, 2]), *unbiased)
    assert float(got) == pytest.approx(12.5)


# --- CPCL: the contrast of losses.common, with several positives -----------------------------------


@pytest.mark.parametrize("tau", [0.02, 0.2, 1.0])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=25)
def test_contrast_with_several_positives_against_loops(tau: float, seed: int) -> None:
    z, y, prototypes, classes = drawn(seed, B, D), labels(seed, B, C), drawn(seed + 1, P, D), labels(seed + 2, P, C)
    got = losses.prototype_contrast(z, y, prototypes, classes, tau)
    expected = slow_contrast(as64(z), y.tolist(), as64(prototypes), classes.tolist(), tau)
    assert float(got) == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_contrast_by_hand() -> None:
    # Cosines of (1, 0) with its two positives (1, 0), (0, 1) are 1 and 0, with the negative (-1, 0) it is -1.
    # At tau = 1: -log((e + 1) / (e + 1 + 1/e)).
    prototypes, classes = torch.tensor([[2.0, 0], [0, 5], [-1, 0]]), torch.tensor([0, 0, 1])
    got = losses.prototype_contrast(torch.tensor([[3.0, 0]]), torch.tensor([0]), prototypes, classes, 1.0)
    assert float(got) == pytest.approx(-math.log((math.e + 1) / (math.e + 1 + 1 / math.e)), rel=1e-5)


@pytest.mark.parametrize("zero", ["features", "prototypes", "both"])
def test_zero_vectors_give_finite_gradients(zero: str) -> None:
    z = (torch.zeros(3, D) if zero in ("features", "both") else drawn(0, 3, D)).requires_grad_()
    prototypes = torch.zeros(4, D) if zero in ("prototypes", "both") else drawn(1, 4, D)
    y, classes = torch.tensor([0, 1, 3]), torch.tensor([0, 0, 1, 2])
    terms = (
        losses.prototype_contrast(z, y, prototypes, classes, 0.02),
        fpl.unbiased_consistency(z, y, *fpl.unbiased_prototypes(prototypes, classes, C)),
    )
    for term in terms:
        (grad,) = torch.autograd.grad(term, z, retain_graph=True)
        assert term.isfinite() and grad.isfinite().all()
        assert not grad[2].any()  # class 3 has no prototype
