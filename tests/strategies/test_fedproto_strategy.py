"""FedProto on the server: the mean over images or nodes against loops, and classes that come and go."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import after_rounds, new_strategy, update

from fedshift_core.arrays import Arrays
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.fedproto import FedProtoStrategy, weighted_prototypes
from fedshift_strategies.methods.prototypes import keep_absent_classes

C, D = 3, 2
strategy = partial(new_strategy, FedProtoStrategy, personal=True)


def merged(server: FedProtoStrategy, *updates: Update) -> dict[int, list[float]]:
    return after_rounds(server, list(updates))


# --- the mean --------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10**6), n=st.integers(1, 6), scale=st.sampled_from([1e-6, 1.0, 1e4]))
@settings(max_examples=60)
def test_weighted_mean_against_loops(seed: int, n: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    p = (scale * rng.normal(size=(n, C, D))).astype(np.float32)
    counts = rng.integers(0, 50, size=(n, C)) * (rng.random(size=(n, C)) < 0.7)
    p[counts == 0] = 1e6  # what a node sends of a class it does not hold must not matter
    g, held = weighted_prototypes(p, counts)
    assert g.dtype == np.float32
    for k in range(C):
        total = sum(int(counts[m, k]) for m in range(n))
        assert bool(held[k]) == (total > 0)
        for d in range(D):
            expected = sum(int(counts[m, k]) * float(p[m, k, d]) for m in range(n)) / total if total else 0.0
            assert float(g[k, d]) == pytest.approx(expected, rel=1e-5, abs=1e-6 * scale)


def test_weighted_mean_is_the_mean_over_all_images() -> None:
    # Three images at 1, 2, 6 on one node (mean 3), one at 11 on another: (1 + 2 + 6 + 11) / 4 = 5; by node 7.
    first, second = update([[3, 0]] * C, [3] * C), update([[11, 0]] * C, [1] * C, 1)
    assert merged(strategy(), first, second) == {k: [5, 0] for k in range(C)}
    assert merged(strategy(prototype_mean="weighted"), first, second) == {k: [5, 0] for k in range(C)}
    assert merged(strategy(prototype_mean="plain"), first, second) == {k: [7, 0] for k in range(C)}


# --- rounds ----------------------------------------------------------------------------------------


def test_absent_classes_keep_all_their_clusters() -> None:
    past: Arrays = {
        "prototypes": np.arange(8, dtype=np.float32).reshape(4, 2),
        "labels": np.array([0, 1, 1, 2]),
    }
    now = keep_absent_classes(np.full((2, 2), 9, np.float32), np.array([2, 0]), past)
    assert now["labels"].tolist() == [0, 1, 1, 2]
    assert now["prototypes"].tolist() == [[9, 9], [2, 3], [4, 5], [9, 9]]
