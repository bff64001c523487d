"""FDSE on the server: consensus and mixtures against slow versions; who is sent which erasers."""

from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.testing import assert_allclose
from scipy.special import softmax
from sklearn.metrics.pairwise import cosine_similarity
from support import ask, federation, node

from fedshift_core.arrays import Arrays
from fedshift_core.methods.fdse import FDSEParams
from fedshift_core.wire.records import encode
from fedshift_strategies.federation.updates import Update, decode
from fedshift_strategies.methods.fdse import FDSEStrategy, consensus, is_eraser, mixtures, shortest

SHAPES = {
    "encoder.0.dfe_conv.weight": (2, 3), "encoder.0.dfe_bias": (4,), "encoder.0.dse_bn.weight": (2,),
    "encoder.0.dse_bn.bias": (2,), "encoder.0.dse_conv.weight": (2, 1, 3, 3), "encoder.0.dfe_bn.running_mean": (4,),
    "encoder.0.dfe_bn.num_batches_tracked": (), "classifier.weight": (3, 4),
}  # fmt: skip
BUFFERS = ("encoder.0.dfe_bn.running_mean", "encoder.0.dfe_bn.num_batches_tracked")


def arrays(seed: int, batches: int = 0) -> Arrays:
    rng = default_rng(seed)
    by_name: Arrays = {name: np.asarray(rng.normal(size=shape), np.float32) for name, shape in SHAPES.items()}
    return by_name | {BUFFERS[1]: np.array(batches, np.int64)}


def strategy(**params: Any) -> FDSEStrategy:
    return FDSEStrategy(federation(buffers=BUFFERS), FDSEParams(**params), lambda *_: None)


def played(server: FDSEStrategy, sent: Arrays, replies: dict[int, Arrays]) -> Arrays:
    server._global = encode(sent)
    updates = [Update(node(n), encode(result), {}, 10 + n, {}) for n, result in replies.items()]
    return decode(server.merge(updates, server.node_weights(updates)))


def test_consensus_by_hand() -> None:
    # Units (1, 0) and (0, 1): the middle, (1/2, 1/2); the mean of the norms 2 and 4 is 3.
    assert_allclose(consensus([np.array([2.0, 0.0]), np.array([0.0, 4.0])], [0.5, 0.5]), [1.5, 1.5])
    # Against each other they cancel, as does one that is zero.
    assert_allclose(consensus([np.array([2.0]), np.array([-4.0])], [0.5, 0.5]), [0.0], atol=1e-7)
    assert_allclose(consensus([np.zeros(3), np.ones(3)], [0.5, 0.5]), np.zeros(3), atol=1e-9)
    mixed = mixtures([np.zeros(2, np.float32), np.array([1, 0], np.float32)], 0.5)
    assert_allclose(mixed[0], [0.5, 0])  # a tensor of zeros has the cosine 0 with each


@pytest.mark.parametrize("tau", [0.1, 0.5, 2.0])
def test_mixtures_against_scikit_learn(tau: float) -> None:
    tensors = list(default_rng(0).normal(size=(4, 3, 1, 2)).astype(np.float32))
    rows = np.stack([tensor.ravel() for tensor in tensors]).astype(np.float64)
    wanted = softmax(cosine_similarity(rows) / tau, axis=1) @ rows
    for row, result in zip(wanted, mixtures(tensors, tau), strict=True):
        assert_allclose(result, row.reshape(3, 1, 2), rtol=1e-5, atol=1e-6)
        assert result.dtype == np.float32


def test_each_kind_of_tensor_is_merged_in_its_way() -> None:
    server, sent = strategy(tau=0.3), arrays(0)
    replies = {n: arrays(n + 1, batches=4 * n) for n in (0, 2, 5)}
    merged = played(server, sent, replies)
    assert list(merged) == list(SHAPES)
    for name, array in merged.items():
        values = [reply[name] for reply in replies.values()]
        mean = wanted = np.mean(values, axis=0, dtype=np.float64)
        if not is_eraser(name) and name not in BUFFERS:
            wanted = sent[name] + consensus([value - sent[name] for value in values], [1 / 3] * 3)
            assert not np.allclose(wanted, mean, atol=1e-3)
        assert_allclose(array, wanted if array.dtype.kind == "f" else np.rint(mean), rtol=1e-5, atol=1e-6)
        assert array.dtype == sent[name].dtype
    assert [name for name in SHAPES if is_eraser(name)] == [name for name in SHAPES if ".dse_" in name]


def test_a_node_is_sent_its_own_erasers_and_no_other_ones() -> None:
    server, sent = strategy(tau=0.1), arrays(0)
    played(server, sent, {1: arrays(1), 11: arrays(11)})
    wanted = {n: mixtures([arrays(1)[n], arrays(11)[n]], 0.1) for n in SHAPES if is_eraser(n)}
    for place, index in enumerate((1, 11)):
        if place:
            played(server, sent, {1: arrays(7)})  # node 11 is not in this round
        for trains in (True, False):
            assert server.knowledge_for(node(0), ask(trains=trains)) == {}  # it has the shared mean
            own = server.knowledge_for(node(index), ask(trains=trains))
            assert own.keys() == wanted.keys()
            assert all(np.array_equal(array, wanted[name][place]) for name, array in own.items())
    assert server.knowledge == {}


@pytest.mark.parametrize("nodes", [1, 2, 5, 12])
def test_no_node_is_moved_against(nodes: int) -> None:
    """The combination is the shortest: its product with each unit update is no less than its square."""
    rng = default_rng(nodes)
    flat = rng.normal(size=(nodes, 40)) + 0.3
    norms = np.linalg.norm(flat, axis=1, keepdims=True)
    unit = flat / norms
    weights = shortest(unit @ unit.T)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1)
    point = weights @ unit
    assert (unit @ point).min() >= float(point @ point) - 1e-9
    updates = [row.reshape(8, 5) for row in flat]
    assert_allclose(consensus(updates, [1 / nodes] * nodes).ravel(), norms.mean() * point, atol=1e-6)
