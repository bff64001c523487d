"""FedProc on the server: the schedule of alpha, the mean over nodes, and classes that come and go."""

from functools import partial

import pytest
from support import ask, new_strategy, update

from fedshift_strategies.methods.fedproc import FedProcStrategy, contrast_share

C = 3
strategy = partial(new_strategy, FedProcStrategy, rounds=4)


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
