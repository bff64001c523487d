"""FedProc on the server: the schedule of alpha, the mean over nodes, and classes that come and go."""

from functools import partial

import numpy as np
import pytest
from support import after_rounds, ask, check_knowledge, new_strategy, update

from fedshift_core.limits import Refused
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.fedproc import FedProcStrategy, contrast_share

C, D = 3, 2
strategy = partial(new_strategy, FedProcStrategy, rounds=4)


def merged(server: FedProcStrategy, *updates: Update) -> dict[int, list[float]]:
    return after_rounds(server, list(updates))


@pytest.mark.parametrize(
    ("rounds", "shares"), [(1, [1.0]), (2, [1.0, 0.5]), (4, [1.0, 0.75, 0.5, 0.25]), (5, [1.0, 0.8, 0.6, 0.4, 0.2])]
)
def test_alpha_falls_from_one_to_one_over_the_rounds(rounds: int, shares: list[float]) -> None:
    assert [contrast_share(t, rounds) for t in range(1, rounds + 1)] == pytest.approx(shares)


def test_nodes_get_the_alpha_of_the_round() -> None:
    server = strategy(rounds=4)
    node = update([[0, 0]] * C, [1] * C).node
    assert server.knowledge_for(node, ask(1)) == server.tell(node, ask(1)) == {}  # round 1: no prototypes
    server.merge_knowledge([update([[1, 2]] * C, [1] * C)])
    for server_round, alpha in ((2, 0.75), (3, 0.5), (4, 0.25)):
        assert set(server.knowledge_for(node, ask(server_round))) == {"prototypes", "labels"}
        assert server.tell(node, ask(server_round)) == {"alpha": alpha}
    assert set(server.knowledge) == {"prototypes", "labels"}  # alpha follows from the round, so none is kept


def test_a_run_of_one_round_has_no_contrast() -> None:
    server = strategy(rounds=1)
    node = update([[0, 0]] * C, [1] * C).node
    assert server.tell(node, ask(1)) == {}
    server.merge_knowledge([update([[1, 2]] * C, [1] * C)])  # evaluation after it
    assert server.tell(node, ask(1, trains=False)) == {"alpha": 1.0}


def test_each_node_counts_once_however_many_images_it_has() -> None:
    first, second = update([[3, 0], [2, 2], [9, 9]], [30, 1, 0]), update([[11, 0], [9, 9], [9, 9]], [1, 0, 0], 1)
    assert merged(strategy(), first, second) == {0: [7, 0], 1: [2, 2]}


def test_mean_against_loops() -> None:
    rng = np.random.default_rng(0)
    p, counts = rng.normal(size=(5, C, D)), rng.integers(0, 3, size=(5, C))
    got = merged(strategy(), *(update(p[n].tolist(), counts[n].tolist(), n) for n in range(5)))
    for k in range(C):
        members = [p[n, k] for n in range(5) if counts[n, k] > 0]
        np.testing.assert_allclose(got[k], sum(members) / len(members), rtol=1e-5)


def test_classes_come_and_go() -> None:
    server = strategy()
    assert merged(server, update([[9, 9], [9, 9], [1, 3]], [0, 0, 1])) == {2: [1, 3]}
    assert merged(server, update([[5, 7], [9, 9], [9, 9]], [1, 0, 0])) == {0: [5, 7], 2: [1, 3]}
    assert merged(server, update([[9, 9], [9, 9], [3, 5]], [0, 0, 1])) == {0: [5, 7], 2: [3, 5]}
    assert merged(server, update([[9, 9]] * C, [0] * C)) == {0: [5, 7], 2: [3, 5]}


def test_strategy_refuses_prototypes_that_do_not_fit_the_federation() -> None:
    server = strategy()
    check_knowledge(server, update([[1.0] * D] * C, [1] * C).knowledge)
    for bad in ({}, update([[1.0] * (D + 1)] * C, [1] * C).knowledge, update([[np.inf] * D] * C, [1] * C).knowledge):
        with pytest.raises(Refused):
            check_knowledge(server, bad)
