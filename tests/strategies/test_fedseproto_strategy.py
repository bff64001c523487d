"""FedSeProto on the server: Eq. 3 and 16 against loops, and what happens to classes that come and go."""

from functools import partial

import numpy as np
import pytest
from support import after_rounds, check_knowledge, new_strategy, update

from fedshift_core.limits import Refused
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.fedseproto import FedSeProtoStrategy

C, D = 3, 2
ONES, TWOS, ALL = [[1.0, 1.0]] * C, [[2.0, 2.0]] * C, [1] * C
strategy = partial(new_strategy, FedSeProtoStrategy)


def rounds(server: FedSeProtoStrategy, *each: list[Update]) -> dict[int, list[float]]:
    result = after_rounds(server, *each)
    assert set(server.knowledge) == {"prototypes", "labels"}
    return result


def test_mean_over_the_nodes_that_hold_a_class_by_hand() -> None:
    # Class 0: nodes 0 and 1, (1, 3) and (3, 5): (2, 4). Class 1: node 1 alone. Class 2: nobody.
    # What a node sends of a class it does not hold is ignored.
    updates = [update([[1, 3], [9, 9], [9, 9]], [4, 0, 0], 0), update([[3, 5], [7, 8], [9, 9]], [1, 2, 0], 1)]
    assert rounds(strategy(), updates) == {0: [2, 4], 1: [7, 8]}


def test_mean_against_loops() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        p = rng.normal(size=(5, C, D)).astype(np.float32)
        counts = rng.integers(0, 3, size=(5, C))
        got = rounds(strategy(), [update(p[n], counts[n].tolist(), n) for n in range(5)])
        for k in range(C):
            holders = [n for n in range(5) if counts[n, k] > 0]
            assert (k in got) is bool(holders)
            if holders:
                mean = [sum(float(p[n, k, j]) for n in holders) / len(holders) for j in range(D)]
                np.testing.assert_allclose(got[k], mean, rtol=1e-5, atol=1e-6)


def test_mean_does_not_look_at_how_many_images_a_node_has() -> None:
    few = [update(ONES, [1] * C, 0), update(TWOS, [1] * C, 1)]
    many = [update(ONES, [1] * C, 0), update(TWOS, [500] * C, 1)]
    assert rounds(strategy(), few) == rounds(strategy(), many) == {k: [1.5, 1.5] for k in range(C)}


def test_one_node_gives_its_own_prototypes() -> None:
    assert rounds(strategy(), [update(TWOS, ALL)]) == {k: [2, 2] for k in range(C)}


def test_a_later_round_replaces_the_one_before() -> None:
    assert rounds(strategy(), [update(ONES, ALL)], [update(TWOS, ALL)]) == {k: [2, 2] for k in range(C)}


def test_classes_come_and_go() -> None:
    server = strategy()
    assert server.knowledge == {}
    assert rounds(server, [update([[9, 9], [9, 9], [1, 3]], [0, 0, 1])]) == {2: [1, 3]}
    assert rounds(server, [update([[5, 7], [9, 9], [9, 9]], [1, 0, 0])]) == {0: [5, 7], 2: [1, 3]}
    assert rounds(server, [update([[9, 9], [9, 9], [3, 5]], [0, 0, 1])]) == {0: [5, 7], 2: [3, 5]}


def test_rounds_in_which_nobody_holds_anything() -> None:
    server = strategy()
    assert rounds(server, [update(TWOS, [0] * C)]) == {}
    before = rounds(server, [update(ONES, [1, 0, 1])])
    assert rounds(server, [update(TWOS, [0] * C)]) == before


def test_knowledge_of_an_earlier_round_is_not_changed_in_place() -> None:
    """What an observer or a message still holds must stay as it was."""
    server = strategy()
    server.merge_knowledge([update(ONES, ALL)])
    kept = server.knowledge["prototypes"]
    server.merge_knowledge([update(TWOS, [1, 0, 0])])
    assert kept.tolist() == ONES


def test_weights_are_averaged_by_number_of_images() -> None:
    """Eq. 16: 3 and 9 images give 1/4 and 3/4."""
    assert strategy().weights([update(ONES, [1] * C, 0), update(ONES, [3] * C, 1)]) == [0.25, 0.75]


def test_strategy_refuses_prototypes_that_do_not_fit_the_federation() -> None:
    server = strategy()
    check_knowledge(server, update(ONES, ALL).knowledge)
    wide = update([[1.0] * (D + 1)] * C, ALL).knowledge
    for bad in ({}, wide, update(ONES, [1] * (C + 1)).knowledge, update([[np.nan, 1.0]] * C, ALL).knowledge):
        with pytest.raises(Refused):
            check_knowledge(server, bad)
