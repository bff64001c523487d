"""FPL's terms against slow loops in float64, and against answers worked out by hand."""

import math

import numpy as np
import pytest
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


# --- UPCR ------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10**6), b=st.integers(1, B), p=st.integers(1, P))
@settings(max_examples=40)
def test_consistency_against_loops(seed: int, b: int, p: int) -> None:
    z, y, prototypes, classes = drawn(seed, b, D), labels(seed, b, C), drawn(seed + 1, p, D), labels(seed + 2, p, C)
    u = slow_unbiased(as64(prototypes), classes.tolist())
    values = [float(((as64(z)[i] - u[int(y[i])]) ** 2).mean()) for i in range(b) if int(y[i]) in u]
    got = fpl.unbiased_consistency(z, y, *fpl.unbiased_prototypes(prototypes, classes, C))
    assert float(got) == pytest.approx(sum(values) / len(values) if values else 0.0, rel=1e-4)


# --- CPCL: the contrast of losses.common, with several positives -----------------------------------


@pytest.mark.parametrize("tau", [0.02, 0.2, 1.0])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=25)
def test_contrast_with_several_positives_against_loops(tau: float, seed: int) -> None:
    z, y, prototypes, classes = drawn(seed, B, D), labels(seed, B, C), drawn(seed + 1, P, D), labels(seed + 2, P, C)
    got = losses.prototype_contrast(z, y, prototypes, classes, tau)
    expected = slow_contrast(as64(z), y.tolist(), as64(prototypes), classes.tolist(), tau)
    assert float(got) == pytest.approx(expected, rel=1e-3, abs=1e-4)
