"""FedProto on the server: the mean over images or nodes against loops, and classes that come and go."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support import after_rounds, new_strategy, update

from fedshift_strategies.methods.fedproto import FedProtoStrategy

C, D = 3, 2


# --- the mean --------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10**6), n=st.integers(1, 6), scale=st.sampled_from([1e-6, 1.0, 1e4]))
@settings(max_examples=60)
def test_weighted_mean_against_numpy(seed: int, n: int, scale: float) -> None:
    """By default, each image counts once, whoever has it."""
    rng = np.random.default_rng(seed)
    p = (scale * rng.normal(size=(n, C, D))).astype(np.float32)
    counts = rng.integers(0, 50, size=(n, C)) * (rng.random(size=(n, C)) < 0.7)
    p[counts == 0] = 1e6  # what a node sends of a class it does not hold must not matter
    updates = [update(p[m], counts[m].tolist(), m) for m in range(n)]
    g = after_rounds(new_strategy(FedProtoStrategy, personal=True), updates)
    assert list(g) == np.flatnonzero(counts.any(axis=0)).tolist()
    for k, prototype in g.items():
        wanted = np.average(p[:, k].astype(np.float64), axis=0, weights=counts[:, k])
        np.testing.assert_allclose(prototype, wanted, rtol=1e-5, atol=1e-6 * scale)
