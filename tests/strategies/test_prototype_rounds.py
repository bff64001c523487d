"""Servers that average prototypes: classes that come and go, what nodes and images count, schedules and weights."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import after_rounds, ask, new_strategy, node
from support import update as prototypes_of_a_node

from fedshift_core.clustering import finch_groups
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.fedcode import FedCodeStrategy
from fedshift_strategies.methods.fedmlp import FedMLPStrategy
from fedshift_strategies.methods.fedproc import FedProcStrategy
from fedshift_strategies.methods.fedproto import FedProtoStrategy
from fedshift_strategies.methods.fedseproto import FedSeProtoStrategy
from fedshift_strategies.methods.fpl import FPLStrategy
from fedshift_strategies.methods.i2pfl import I2PFLStrategy
from fedshift_strategies.methods.prototypes import mean_prototypes

C, D = 3, 2
#: Those whose global prototype is the plain mean over the nodes that hold a class.
MEANS: dict[str, tuple[type[DomainStrategy[Any]], dict[str, Any]]] = {
    "fedcode": (FedCodeStrategy, {}),
    "fedmlp": (FedMLPStrategy, {}),
    "fedproc": (FedProcStrategy, {}),
    "fedproto": (FedProtoStrategy, {"prototype_mean": "plain"}),
    "fedseproto": (FedSeProtoStrategy, {}),
}
#: Those for which one or two nodes give their mean.
PAIRS = MEANS | {
    "fpl": (FPLStrategy, {}),
    "i2pfl": (I2PFLStrategy, {"use_ema": False}),
    "i2pfl-finch": (I2PFLStrategy, {"use_ema": False, "inter_proto": "finch"}),
}
ALL = PAIRS | {"fedproto-weighted": (FedProtoStrategy, {})}


def strategy(name: str) -> DomainStrategy[Any]:
    kind, params = ALL[name]
    return new_strategy(kind, personal=True, **params)


def update(prototypes: Any, counts: list[int], index: int = 0) -> Update:
    one = prototypes_of_a_node(prototypes, counts, index)
    style = {"style-prototype": np.ones(D, np.float32)}  # which FedCode takes besides
    return Update(one.node, ArrayRecord(), {**one.knowledge, **style}, one.num_examples, {})


@pytest.mark.parametrize("name", ALL)
def test_classes_come_and_go(name: str) -> None:
    server, nobody = strategy(name), update([[9, 9]] * C, [0] * C)
    assert server.knowledge == {}
    assert after_rounds(server, [nobody]) == {}
    assert after_rounds(server, [update([[9, 9], [9, 9], [1, 3]], [0, 0, 1])]) == {2: [1, 3]}
    assert after_rounds(server, [update([[5, 7], [9, 9], [9, 9]], [1, 0, 0])]) == {0: [5, 7], 2: [1, 3]}
    seen = server.knowledge["prototypes"]
    assert after_rounds(server, [update([[9, 9], [9, 9], [3, 5]], [0, 0, 1])], [nobody]) == {0: [5, 7], 2: [3, 5]}
    assert seen.tolist() == [[5, 7], [1, 3]]  # what an observer or a message still has stays as it was


@pytest.mark.parametrize("name", PAIRS)
def test_each_node_that_has_a_class_counts_once_however_many_images_it_has(name: str) -> None:
    first, second = update([[3, 0], [2, 2], [9, 9]], [30, 1, 0]), update([[11, 0], [9, 9], [9, 9]], [1, 0, 0], 1)
    assert after_rounds(strategy(name), [first, second]) == {0: [7, 0], 1: [2, 2]}


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


def test_fedproc_nodes_get_the_alpha_of_the_round() -> None:
    server, of = new_strategy(FedProcStrategy, rounds=4), node()
    assert server.knowledge_for(of, ask(1)) == server.tell(of, ask(1)) == {}  # round 1: no prototypes
    server.merge_knowledge([update([[1, 2]] * C, [1] * C)])
    for server_round, alpha in ((2, 0.75), (3, 0.5), (4, 0.25)):
        assert set(server.knowledge_for(of, ask(server_round))) == {"prototypes", "labels"}
        assert server.tell(of, ask(server_round)) == {"alpha": alpha}
    assert set(server.knowledge) == {"prototypes", "labels"}  # alpha follows from the round, so none is kept


def test_fedseproto_averages_weights_by_number_of_images() -> None:
    """Eq. 16: 3 and 9 images give 1/4 and 3/4."""
    updates = [update([[1.0, 1.0]] * C, [n] * C, i) for i, n in enumerate((1, 3))]
    assert new_strategy(FedSeProtoStrategy).weights(updates) == [0.25, 0.75]


# --- prototypes of many nodes -------------------------------------------------------------------------

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
