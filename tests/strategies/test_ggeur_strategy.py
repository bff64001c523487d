"""GGEUR on the server: pooled covariances, prototypes by domain, what each node is sent and asked."""

from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from numpy.testing import assert_allclose
from support import ask, federation, node

from fedshift_clients.methods import ggeur as geometry
from fedshift_core.arrays import Arrays
from fedshift_core.methods.ggeur import GGEURParams
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.ggeur import ClassStatistics, GGEURStrategy, pooled

C, F = 3, 5
DOMAINS = ("a", "b", "c")


def server(**params: Any) -> GGEURStrategy:
    facts = federation(num_classes=C, feature_dim=F, domains=DOMAINS)
    return GGEURStrategy(facts, GGEURParams(**params), lambda result, weights: None)


def images(index: int) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of a node; class 2 has images on node 1 alone, and class 1 none on node 2."""
    rng = np.random.default_rng(index)
    y = rng.integers(0, 2, 12 + index) if index != 2 else np.zeros(9, np.int64)
    if index == 1:
        y[:4] = 2
    return (rng.normal(size=(len(y), F)) + 3 * rng.normal(size=F)).astype(np.float32), y


def sent_by(index: int, most: int = 0, **more: Any) -> Update:
    f, y = images(index)
    arrays = geometry.statistics(torch.from_numpy(f), torch.from_numpy(y), C, 2, most)
    knowledge: Arrays = {name: array.numpy() for name, array in arrays.items()}
    knowledge["counts"] = np.bincount(y, minlength=C)
    of = node(index, knowledge["counts"].tolist(), DOMAINS[index // 2])
    return Update(of, ArrayRecord(), knowledge | more, len(y), {})


def again(index: int) -> Update:
    """What a node sends that has sent its statistics before."""
    update = sent_by(index)
    nothing = {name: array.numpy() for name, array in geometry.no_statistics(C).items()}
    return Update(update.node, ArrayRecord(), update.knowledge | nothing, update.num_examples, {})


def covariances(of: GGEURStrategy) -> np.ndarray:
    values, vectors = of.knowledge["eigenvalues"].astype(np.float64), of.knowledge["eigenvectors"].astype(np.float64)
    return np.asarray(np.einsum("kr,krf,krg->kfg", values, vectors, vectors))


def whole(*nodes: int) -> np.ndarray:
    """The covariance of each class's features of all these nodes, as if one held them."""
    f, y = (np.concatenate(parts) for parts in zip(*map(images, nodes), strict=True))
    made = [np.cov(f[y == k].T, bias=True) if (y == k).any() else np.zeros((F, F)) for k in range(C)]
    return np.stack(made)


def test_nodes_that_tell_later_are_pooled_with_those_before_and_nobody_counts_twice() -> None:
    made = server()
    made.merge_knowledge([sent_by(3), sent_by(1)])
    first = made.knowledge
    made.merge_knowledge([again(1), again(3)])
    assert made.knowledge is first
    made.merge_knowledge([sent_by(0), sent_by(1), sent_by(2), again(3)])
    assert_allclose(covariances(made), whole(0, 1, 2, 3), atol=1e-4)
    values = made.knowledge["eigenvalues"]
    assert values.dtype == np.float32 and (values[:, :-1] >= values[:, 1:]).all()
    assert made.state["nodes"].tolist() == [0, 1, 2, 3]
    f, y = (np.concatenate(parts) for parts in zip(images(2), images(3), strict=True))
    assert_allclose(made.state["means"][1, 0], f[y == 0].mean(axis=0), rtol=1e-5)
    assert made.state["counts"][1].tolist() == np.bincount(y, minlength=C).tolist()


def test_principal_components_that_travel_are_the_first_of_numpy() -> None:
    made = server(pca=2)
    made.merge_knowledge([sent_by(i) for i in range(3)])
    assert made.knowledge["eigenvectors"].shape == (C, 2, F)
    wanted = np.linalg.eigvalsh(whole(0, 1, 2))[:, ::-1][:, :2]
    assert_allclose(made.knowledge["eigenvalues"], wanted, rtol=1e-4)


def test_a_node_is_sent_prototypes_of_other_domains_alone_and_the_covariances_for_training() -> None:
    made = server()
    assert made.knowledge_for(node(0), ask()) == {}
    made.merge_knowledge([sent_by(i) for i in range(5)])
    sent = made.knowledge_for(node(0, domain="a"), ask())
    assert sent["eigenvectors"] is made.knowledge["eigenvectors"]
    assert sent["labels"].tolist() == [0, 1, 0, 1]  # of b, then of c
    for row, (nodes, k) in zip(sent["prototypes"], (((2, 3), 0), ((2, 3), 1), ((4,), 0), ((4,), 1)), strict=True):
        f, y = (np.concatenate(parts) for parts in zip(*map(images, nodes), strict=True))
        assert_allclose(row, f[y == k].mean(axis=0), rtol=1e-4, atol=1e-5)
    assert made.knowledge_for(node(2, domain="b"), ask())["labels"].tolist() == [0, 1, 2, 0, 1]
    assert made.knowledge_for(node(0), ask(trains=False)) == {}


def test_statistics_are_asked_for_once() -> None:
    made, requested = server(), {"statistics": 1}
    assert [made.tell(node(1), ask(trains=trains)) for trains in (True, False)] == [requested, {}]
    made.merge_knowledge([sent_by(1)])
    assert [made.tell(node(index), ask()) for index in (1, 2)] == [{}, requested]
    assert server(samples=0).tell(node(1), ask()) == {}


def test_statistics_of_another_width_are_left_out() -> None:
    made, wide = server(), sent_by(0, means=np.zeros((C, F + 1), np.float32))
    made.merge_knowledge([wide, sent_by(1)])
    assert made.state["nodes"].tolist() == [1]
    assert "of 6 numbers, a frozen feature has 5" in made._result.left_out[0]


def test_a_negative_eigenvalue_and_a_class_of_nobody_count_as_nothing() -> None:
    for number, left in ((3, [2]), (0, [])):
        values, _ = pooled([ClassStatistics(number, np.ones(F), np.array([2.0, -1.0]), np.eye(F)[:2])])
        assert_allclose(values, left)
