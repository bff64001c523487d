"""FPL's unbiased prototypes and consistency against slow loops in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Float, as64, drawn, labels

from fedshift_clients.methods import fpl

B, C, D, P = 9, 4, 5, 7


def slow_unbiased(prototypes: Float, classes: list[int]) -> dict[int, Float]:
    content = {}
    for k in sorted(set(classes)):
        members = [prototypes[j] for j in range(len(classes)) if classes[j] == k]
        content[k] = np.sum(members, axis=0) / len(members)
    return content


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
