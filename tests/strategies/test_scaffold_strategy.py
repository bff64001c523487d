"""SCAFFOLD's server: c against loops, what it takes and sends."""

import numpy as np
import pytest
from flwr.app import ArrayRecord
from support import ask, federation, node

from fedshift_core.methods.scaffold import ScaffoldParams
from fedshift_core.wire.records import encode
from fedshift_strategies.federation.roster import Roster
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.scaffold import CHANGE, SERVERS, ScaffoldStrategy

NODES = [node(i, counts=(i + 1, 0, 0)) for i in range(5)]
SENT = {"w": np.zeros((3, 2), np.float32), "running": np.zeros(4, np.float32), "count": np.array(3)}


@pytest.fixture(autouse=True)
def five_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Roster, "nodes", property(lambda self: NODES))


def server(control: bool = True) -> ScaffoldStrategy:
    made = ScaffoldStrategy(federation(buffers=("running",)), ScaffoldParams(control=control), lambda *result: None)
    made._global = encode(SENT)
    return made


def update(index: int, change: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Update:
    return Update(NODES[index], ArrayRecord(), {CHANGE: change}, NODES[index].num_examples, {})


def test_c_moves_by_what_the_nodes_own_did_over_all_nodes() -> None:
    made, own, rng = server(), np.zeros((5, 6)), np.random.default_rng(0)
    for who in [(0, 1, 2, 3, 4), (1, 4), (2,)]:
        changes = rng.normal(size=(len(who), 6)).astype(np.float32)
        updates = [update(i, change) for i, change in zip(who, changes, strict=True)]
        assert made.node_weights(updates) == [1 / len(who)] * len(who)
        made.merge_knowledge(updates)
        own[list(who)] += changes
        np.testing.assert_allclose(made.knowledge[SERVERS], own.mean(axis=0), rtol=1e-5, atol=1e-6)
    assert made.knowledge[SERVERS].dtype == np.float32


def test_c_goes_to_nodes_that_train_and_nothing_before_there_is_one() -> None:
    made = server()
    assert made.knowledge_for(NODES[0], ask()) == {}
    made.merge_knowledge([update(0, np.ones(6, np.float32))])
    assert list(made.knowledge_for(NODES[0], ask(2))) == [SERVERS]
    assert made.knowledge_for(NODES[0], ask(2, trains=False)) == {}
