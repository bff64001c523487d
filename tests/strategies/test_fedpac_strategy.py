"""FedPAC on the server: the quadratic programme, combined heads, what each node is sent."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from support import ask, new_strategy, node
from support import update as prototypes_of_node

from fedshift_core.wire.records import encode
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.fedpac import FedPACStrategy, Floats, combinations

C, D = 3, 2


def statistics(seed: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(nodes, C, D)).astype(np.float32), rng.uniform(0.01, 0.5, nodes).astype(np.float32)


def objective(weights: Floats, n: int, h: np.ndarray, v: np.ndarray) -> Floats:
    """The paper's objective of node n, of each row of weights."""
    mixed = np.tensordot(weights, h.astype(np.float64), 1)
    return np.asarray(weights**2 @ v.astype(np.float64) + ((h[n] - mixed) ** 2).sum(axis=(-2, -1)))


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
def test_no_point_of_a_grid_over_the_simplex_is_better(scale: float) -> None:
    grid = np.array([whole for whole in itertools.product(range(21), repeat=3) if sum(whole) == 20]) / 20
    h, v = statistics(0, 3)
    h, v = h * np.float32(scale), v * np.float32(scale**2)
    for n, alpha in enumerate(combinations(h, v)):
        assert alpha.min() >= 0
        assert alpha.sum() == pytest.approx(1)
        assert objective(alpha, n, h, v) <= objective(grid, n, h, v).min() * (1 + 1e-5)


# --- rounds ----------------------------------------------------------------------------------------


def sent_by(index: int, seed: int = 0) -> Update:
    h, v = statistics(seed, 4)
    plain = prototypes_of_node(np.full((C, D), index + 1.0), [4, 4, 0], index)
    knowledge = plain.knowledge | {"class-features": h[index], "variance": v[index : index + 1]}
    weights = {
        "encoder.weight": np.zeros(3, np.float32),
        "classifier.weight": np.full((C, D), 10.0**index, np.float32), "classifier.bias": np.full(C, index, np.float32),
    }  # fmt: skip
    return Update(plain.node, encode(weights), knowledge, 8, {})


def test_each_node_is_sent_its_own_combination_and_nothing_of_the_others() -> None:
    server = new_strategy(FedPACStrategy)
    assert server.knowledge_for(node(0), ask()) == {}
    server.merge_knowledge([sent_by(i) for i in range(4)])
    h, v = statistics(0, 4)
    for index, alpha in enumerate(combinations(h, v)):
        sent = server.knowledge_for(node(index), ask())
        assert {name: array.shape for name, array in sent.items()} == {
            "prototypes": (2, D), "labels": (2,), "head/weight": (C, D), "head/bias": (C,)
        }  # fmt: skip
        assert_allclose(sent["head/weight"], np.full((C, D), alpha @ [1, 10, 100, 1000]), rtol=1e-6)
        assert_allclose(sent["head/bias"], np.full(C, alpha @ [0, 1, 2, 3]), rtol=1e-6)
        assert_allclose(sent["prototypes"], np.full((2, D), 2.5), rtol=1e-6)


def test_a_node_that_misses_a_round_keeps_its_head() -> None:
    server = new_strategy(FedPACStrategy)
    server.merge_knowledge([sent_by(0), sent_by(2)])
    before = server.knowledge_for(node(2), ask())
    server.merge_knowledge([sent_by(0, seed=1), sent_by(1, seed=1)])
    after, nobodys = (server.knowledge_for(node(index), ask()) for index in (2, 3))
    for name in ("head/weight", "head/bias"):
        assert np.array_equal(before[name], after[name]) and name not in nobodys
    assert server.knowledge["nodes"].tolist() == [0, 1, 2]
