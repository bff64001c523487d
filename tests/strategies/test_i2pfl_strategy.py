"""I2PFL on the server: Eq. 3 to 5 against loops, and what happens to classes that come and go."""

import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError
from support import after_rounds, check_knowledge, new_strategy, update

from fedshift_core.limits import Refused
from fedshift_core.methods.i2pfl import I2PFLParams
from fedshift_strategies.methods.i2pfl import I2PFLStrategy, reweighted_prototypes
from fedshift_strategies.methods.prototypes import cluster_prototypes, mean_prototypes

Array = NDArray[Any]
C, D = 3, 2


# --- Eq. 4 -----------------------------------------------------------------------------------------


def slow_reweighted(p: NDArray[np.float32], holds: NDArray[np.bool_], squared: bool) -> NDArray[np.float64]:
    m, c, d = p.shape
    g = np.zeros((c, d))
    for k in range(c):
        nodes = [node for node in range(m) if holds[node, k]]
        if not nodes:
            continue
        mu = [sum(float(p[node, k, i]) for node in nodes) / len(nodes) for i in range(d)]
        distances = []
        for node in nodes:
            square = sum((float(p[node, k, i]) - mu[i]) ** 2 for i in range(d))
            distances.append(square if squared else math.sqrt(square))
        for i in range(d):
            if sum(distances) < 1e-12:
                g[k, i] = mu[i]
            else:
                for node, distance in zip(nodes, distances, strict=True):
                    g[k, i] += distance / sum(distances) * float(p[node, k, i])
    return g


@pytest.mark.parametrize(
    ("squared", "weights", "rounded"),
    [
        (True, (1 / 14, 4 / 14, 9 / 14), (0.07, 0.29, 0.64)),
        (False, (1 / 6, 2 / 6, 3 / 6), (0.17, 0.33, 0.5)),
    ],
)
def test_reweighting_by_hand(squared: bool, weights: tuple[float, ...], rounded: tuple[float, ...]) -> None:
    # Prototypes at 1, 2 and -3 have mean 0, so distances 1, 2, 3: squared 1, 4, 9 of 14, plain of 6.
    # A second axis moves all of them by 10 and must come out as 10: the weights sum to 1.
    assert [round(w, 2) for w in weights] == list(rounded)
    offsets = (1.0, 2.0, -3.0)
    p = np.array([[[offset, 10.0]] for offset in offsets], dtype=np.float32)
    g, held = reweighted_prototypes(p, np.ones((3, 1), bool), squared=squared)
    by_hand = sum(w * offset for w, offset in zip(weights, offsets, strict=True))
    np.testing.assert_allclose(g, [[by_hand, 10]], rtol=1e-6)
    assert g.dtype == np.float32
    assert held.tolist() == [True]


@pytest.mark.parametrize("squared", [True, False])
def test_reweighting_against_loops(squared: bool) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        p = rng.normal(size=(5, 6, 4)).astype(np.float32)
        holds = rng.random(size=(5, 6)) < 0.6
        holds[:, 0], holds[:, 1], holds[0, 1] = False, False, True  # class 0: nobody; class 1: node 0 alone
        g, held = reweighted_prototypes(p, holds, squared=squared)
        np.testing.assert_allclose(g, slow_reweighted(p, holds, squared), rtol=1e-4, atol=1e-6)
        assert held.tolist() == [bool(holds[:, k].any()) for k in range(6)]
        assert np.array_equal(g[0], np.zeros(4))
        assert np.array_equal(g[1], p[0, 1])


def test_equal_prototypes_give_themselves() -> None:
    for nodes, value, squared in itertools.product([1, 2, 3, 7], [0.1, 1 / 3, 1e4, 0.0], [True, False]):
        p = np.full((nodes, 2, 3), value, dtype=np.float32)
        g, _ = reweighted_prototypes(p, np.ones((nodes, 2), bool), squared=squared)
        assert np.array_equal(g, p[0]), (nodes, value, squared)


@pytest.mark.parametrize("squared", [True, False])
@given(seed=st.integers(0, 10**6), gap=st.sampled_from([1.0, 1e-3, 1e-6, 1e-8]))
@settings(max_examples=40)
def test_two_nodes_are_averaged(squared: bool, seed: int, gap: float) -> None:
    # Both are equally far from their mean, so each weighs 1/2 (methods A5).
    rng = np.random.default_rng(seed)
    first = rng.normal(size=(1, 2, 4))
    p = np.concatenate([first, first + gap * rng.normal(size=(1, 2, 4))]).astype(np.float32)
    holds = np.ones((2, 2), bool)
    np.testing.assert_allclose(
        reweighted_prototypes(p, holds, squared=squared)[0], mean_prototypes(p, holds)[0], rtol=1e-5, atol=1e-6
    )


@given(m=st.integers(1, 6), seed=st.integers(0, 10**6), scale=st.sampled_from([1e-6, 1.0, 1e4]), squared=st.booleans())
@settings(max_examples=60)
def test_reweighted_prototypes_lie_between_those_of_the_holders(m: int, seed: int, scale: float, squared: bool) -> None:
    rng = np.random.default_rng(seed)
    p = (scale * rng.normal(size=(m, C, D))).astype(np.float32)
    holds = rng.random(size=(m, C)) < 0.7
    g, held = reweighted_prototypes(p, holds, squared=squared)
    for k in np.flatnonzero(held):
        members = p[holds[:, k], k]
        assert np.all(g[k] >= members.min(axis=0) - 1e-5 * scale)
        assert np.all(g[k] <= members.max(axis=0) + 1e-5 * scale)


def test_what_a_node_sends_of_a_class_it_does_not_hold_is_ignored() -> None:
    rng = np.random.default_rng(0)
    p = rng.normal(size=(4, C, D)).astype(np.float32)
    holds = np.array([[True] * C, [True, False, True], [False, True, True], [True] * C])
    spoiled = np.where(holds[:, :, None], p, np.float32(1e6))
    for squared in (True, False):
        clean, _ = reweighted_prototypes(p, holds, squared=squared)
        assert np.array_equal(reweighted_prototypes(spoiled, holds, squared=squared)[0], clean)


# --- clusters --------------------------------------------------------------------------------------


def test_two_obvious_clusters() -> None:
    # Class 0: three nodes near (1, 0), three near (0, 1); cluster means by hand:
    # ((1, 0) + (2, 0.3) + (3, 0)) / 3 = (2, 0.1), and the mirror image.
    of_class_0 = [(1, 0), (0, 1), (2, 0.3), (0.3, 2), (3, 0), (0, 3)]
    p = np.array([[row, (5, 5)] for row in of_class_0], dtype=np.float32)
    holds = np.ones((6, 2), bool)
    holds[2:, 1] = False  # class 1: two nodes, one cluster
    prototypes, labels = cluster_prototypes(p, holds)
    assert labels.tolist() == [0, 0, 1]
    assert (str(prototypes.dtype), str(labels.dtype)) == ("float32", "int64")
    result = sorted(prototypes[:2].tolist())
    np.testing.assert_allclose(result, [[0.1, 2], [2, 0.1]], rtol=1e-5)
    assert prototypes[2].tolist() == [5, 5]


@pytest.mark.parametrize(("members", "mean"), [([(1, 2)], (1, 2)), ([(1, 2), (3, -2)], (2, 0))])
def test_one_or_two_members_are_one_cluster(members: list[tuple[int, int]], mean: tuple[int, int]) -> None:
    p = np.array([[row] for row in members], dtype=np.float32)
    prototypes, labels = cluster_prototypes(p, np.ones((len(members), 1), bool))
    assert prototypes.tolist() == [list(mean)]
    assert labels.tolist() == [0]


def test_class_nobody_holds_has_no_cluster() -> None:
    holds = np.array([[True, False, True]] * 3)
    prototypes, labels = cluster_prototypes(np.ones((3, C, D), np.float32), holds)
    assert labels.tolist() == [0, 2]
    np.testing.assert_allclose(prototypes, np.ones((2, D)))


def test_no_class_at_all_gives_no_cluster() -> None:
    prototypes, labels = cluster_prototypes(np.ones((2, C, D), np.float32), np.zeros((2, C), bool))
    assert (prototypes.shape, prototypes.dtype) == ((0, D), np.dtype(np.float32))
    assert (labels.shape, labels.dtype) == ((0,), np.dtype(np.int64))


@pytest.mark.parametrize("zeros", [1, 2, 4])
def test_zero_prototypes_do_not_spoil_the_clusters(zeros: int) -> None:
    # A dead encoder sends features of length zero, which have no direction.
    p = np.random.default_rng(0).uniform(0.5, 1, size=(4, 1, D)).astype(np.float32)
    p[:zeros] = 0
    prototypes, labels = cluster_prototypes(p, np.ones((4, 1), bool))
    assert np.isfinite(prototypes).all()
    assert len(labels) >= 1
    assert (labels == 0).all()


@given(seed=st.integers(0, 10**6), m=st.integers(1, 7))
@settings(max_examples=30)
def test_clusters_are_means_of_all_holders(seed: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.uniform(size=(m, C, D)).astype(np.float32)
    holds = rng.random(size=(m, C)) < 0.7
    prototypes, labels = cluster_prototypes(p, holds)
    assert np.array_equal(np.unique(labels), np.flatnonzero(holds.any(axis=0)))
    for prototype, k in zip(prototypes, labels, strict=True):
        members = p[holds[:, k], k]
        assert np.all(prototype >= members.min(axis=0) - 1e-6)
        assert np.all(prototype <= members.max(axis=0) + 1e-6)


# --- rounds ----------------------------------------------------------------------------------------


strategy = partial(new_strategy, I2PFLStrategy)
ONES = [[1.0, 1.0]] * C
TWOS = [[2.0, 2.0]] * C
ALL = [1] * C


@pytest.mark.parametrize(
    ("params", "answer"),
    [
        ({"ema": 0.9}, 1.1),  # 0.9 * 1 + 0.1 * 2
        ({"ema": 0.9, "ema_weight_on": "past"}, 1.1),
        ({"ema": 0.9, "ema_weight_on": "current"}, 1.9),  # 0.1 * 1 + 0.9 * 2
        ({"ema": 0.9, "use_ema": False}, 2.0),
        ({}, 1.01),  # 0.99 * 1 + 0.01 * 2
        ({"ema": 0.0}, 2.0),
        ({"ema": 1.0}, 1.0),
        ({"ema": 0.9, "inter_proto": "average"}, 1.1),
        ({"ema": 0.9, "dist": "l2"}, 1.1),
    ],
)
def test_second_round_is_mixed_with_the_first(params: dict[str, Any], answer: float) -> None:
    got = after_rounds(strategy(**params), [update(ONES, ALL)], [update(TWOS, ALL)])
    assert list(got) == [0, 1, 2]
    np.testing.assert_allclose(list(got.values()), [[answer] * D] * C, rtol=1e-6)


def test_third_round_is_mixed_with_the_mixture() -> None:
    # 1, then 0.5 * 1 + 0.5 * 2 = 1.5, then 0.5 * 1.5 + 0.5 * 4 = 2.75.
    got = after_rounds(strategy(ema=0.5), [update(ONES, ALL)], [update(TWOS, ALL)], [update([[4.0, 4.0]] * C, ALL)])
    assert got == {k: [2.75, 2.75] for k in range(C)}


@pytest.mark.parametrize("weight_on", ["past", "current"])
def test_first_round_is_taken_as_it_is(weight_on: str) -> None:
    assert after_rounds(strategy(ema_weight_on=weight_on), [update(TWOS, ALL)]) == {k: [2, 2] for k in range(C)}


@pytest.mark.parametrize("use_ema", [True, False])
def test_classes_come_and_go(use_ema: bool) -> None:
    server = strategy(ema=0.5, use_ema=use_ema)
    assert server.knowledge == {}
    # Round 1: only class 2. Round 2: only class 0, taken as it is; class 2 stays to the bit.
    assert after_rounds(server, [update([[9, 9], [9, 9], [1, 3]], [0, 0, 1])]) == {2: [1, 3]}
    assert after_rounds(server, [update([[5, 7], [9, 9], [9, 9]], [1, 0, 0])]) == {0: [5, 7], 2: [1, 3]}
    # Round 3: class 2 again, at (3, 5): with EMA 0.5 * (1, 3) + 0.5 * (3, 5) = (2, 4).
    last = after_rounds(server, [update([[9, 9], [9, 9], [3, 5]], [0, 0, 1])])
    assert last == {0: [5, 7], 2: [2, 4] if use_ema else [3, 5]}


def test_round_in_which_nobody_holds_anything_changes_nothing() -> None:
    server = strategy()
    before = after_rounds(server, [update(ONES, [1, 0, 1])])
    assert after_rounds(server, [update(TWOS, [0, 0, 0])]) == before


def test_first_round_in_which_nobody_holds_anything() -> None:
    assert after_rounds(strategy(), [update(TWOS, [0, 0, 0])]) == {}


@pytest.mark.parametrize(
    ("params", "answer"),
    [
        # Distances 1, 2, 3 (see test_reweighting_by_hand): (1 + 8 - 27) / 14, (1 + 4 - 9) / 6, mean 0.
        ({}, -18 / 14),
        ({"dist": "l2"}, -4 / 6),
        ({"inter_proto": "average"}, 0.0),
        ({"inter_proto": "average", "dist": "l2"}, 0.0),
    ],
)
def test_switches_reach_the_prototypes(params: dict[str, Any], answer: float) -> None:
    updates = [update([[offset, 10.0]] * C, ALL, index) for index, offset in enumerate((1.0, 2.0, -3.0))]
    got = after_rounds(strategy(**params), updates)
    np.testing.assert_allclose(list(got.values()), [[answer, 10]] * C, rtol=1e-5, atol=1e-6)


def test_reweighting_does_not_look_at_how_many_images_a_node_has() -> None:
    offsets, sizes = (1.0, 2.0, -3.0), (1, 500, 20)
    few = [update([[offset, 0.0]] * C, ALL, i) for i, offset in enumerate(offsets)]
    many = [
        update([[offset, 0.0]] * C, [size] * C, i) for i, (offset, size) in enumerate(zip(offsets, sizes, strict=True))
    ]
    assert after_rounds(strategy(), few) == after_rounds(strategy(), many)


def test_knowledge_of_an_earlier_round_is_not_changed_in_place() -> None:
    """What an observer or a message still holds must stay as it was."""
    server = strategy(ema=0.5)
    server.merge_knowledge([update(ONES, ALL)])
    kept = server.knowledge["prototypes"]
    server.merge_knowledge([update(TWOS, ALL)])
    assert kept.tolist() == ONES


def test_finch_sends_several_prototypes_of_a_class() -> None:
    server = strategy(inter_proto="finch", use_ema=False)
    rows = [(1, 0), (0, 1), (2, 0.1), (0.1, 2), (3, 0), (0, 3)]
    for _ in range(2):
        server.merge_knowledge([update([[float(a), float(b)]] * C, [1, 1, 0], i) for i, (a, b) in enumerate(rows)])
        assert server.knowledge["labels"].tolist() == [0, 0, 1, 1]
        assert server.knowledge["prototypes"].shape == (4, D)


def test_finch_keeps_the_clusters_of_a_class_that_nobody_holds_this_round() -> None:
    server = strategy(inter_proto="finch", use_ema=False)
    server.merge_knowledge([update(ONES, [1, 1, 0])])
    server.merge_knowledge([update(TWOS, [1, 0, 0])])
    result = dict(zip(server.knowledge["labels"].tolist(), server.knowledge["prototypes"].tolist(), strict=True))
    assert result == {0: TWOS[0], 1: ONES[1]}


# --- parameters and refusals -----------------------------------------------------------------------


def test_finch_needs_ema_off() -> None:
    with pytest.raises(ValidationError, match="inter_proto=finch needs use_ema=false"):
        I2PFLParams(inter_proto="finch")
    assert I2PFLParams(inter_proto="finch", use_ema=False).inter_proto == "finch"


def test_strategy_refuses_prototypes_that_do_not_fit_the_federation() -> None:
    server = strategy()
    check_knowledge(server, update(ONES, ALL).knowledge)
    for bad in ({}, update([[1.0] * (D + 1)] * C, ALL).knowledge, update(ONES, [1] * (C + 1)).knowledge):
        with pytest.raises(Refused):
            check_knowledge(server, bad)
