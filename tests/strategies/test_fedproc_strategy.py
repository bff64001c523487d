"""FedProc on the server: the schedule of alpha, the mean over nodes, and classes that come and go."""

from functools import partial

from support import ask, new_strategy, update

from fedshift_strategies.methods.fedproc import FedProcStrategy

C = 3
strategy = partial(new_strategy, FedProcStrategy, rounds=4)


def test_nodes_get_the_alpha_of_the_round() -> None:
    server = strategy(rounds=4)
    node = update([[0, 0]] * C, [1] * C).node
    assert server.knowledge_for(node, ask(1)) == server.tell(node, ask(1)) == {}  # round 1: no prototypes
    server.merge_knowledge([update([[1, 2]] * C, [1] * C)])
    for server_round, alpha in ((2, 0.75), (3, 0.5), (4, 0.25)):
        assert set(server.knowledge_for(node, ask(server_round))) == {"prototypes", "labels"}
        assert server.tell(node, ask(server_round)) == {"alpha": alpha}
    assert set(server.knowledge) == {"prototypes", "labels"}  # alpha follows from the round, so none is kept
