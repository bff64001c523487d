"""Prototypes of many nodes: what is refused, how they are stacked, averaged and grouped."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedshift_core.clustering import finch_groups
from fedshift_strategies.methods.prototypes import mean_prototypes

# --- stacking and averaging ------------------------------------------------------------------------


@given(m=st.integers(1, 5), c=st.integers(1, 4), d=st.integers(1, 4), seed=st.integers(0, 10**6))
@settings(max_examples=50)
def test_mean_against_numpy(m: int, c: int, d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.normal(size=(m, c, d)).astype(np.float32)
    holds = rng.random(size=(m, c)) < 0.6
    mu, held = mean_prototypes(p, holds)
    assert held.tolist() == holds.any(axis=0).tolist()
    wanted = np.ma.masked_array(p, np.repeat(~holds[:, :, None], d, axis=2)).mean(axis=0, dtype=np.float64).filled(0)
    np.testing.assert_allclose(mu, wanted, rtol=1e-5, atol=1e-6)


def test_mean_of_large_numbers_does_not_lose_the_small_ones() -> None:
    # In float32, 2**24 + 1 + 1 - 2**24 is 0; in float64 the mean is exactly 1/2.
    p = np.array([2**24, 1, 1, -(2**24)], dtype=np.float32).reshape(4, 1, 1)
    assert mean_prototypes(p, np.ones((4, 1), bool))[0].tolist() == [[0.5]]


# --- FINCH -----------------------------------------------------------------------------------------


def groups_of(points: NDArray[np.float32]) -> set[frozenset[int]]:
    return {frozenset(group.tolist()) for group in finch_groups(points)}


def test_finch_takes_the_coarsest_partition() -> None:
    # Two bundles around the first and the last axis, each of two pairs. Cosine distances within a bundle:
    # in a pair 1 - 25.2 / 26.01 = 0.031, across pairs 1 - 25 / 26.01 = 0.039: the first partition has four
    # pairs. Their means are 1 - 25 / 25.605 = 0.024 apart, so the second has the two bundles; a third
    # would be all in one, which FINCH does not return.
    sides = np.array([[1, 0.1, 0, 0], [0.1, 1, 0, 0], [0, 0, 1, 0.1], [0, 0, 0.1, 1]])
    far, near = np.full((4, 1), 5.0), np.zeros((4, 1))
    points = np.vstack([np.hstack([far, sides, near]), np.hstack([near, sides, far])]).astype(np.float32)
    assert groups_of(points) == {frozenset(range(4)), frozenset(range(4, 8))}
