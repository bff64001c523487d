"""COPA on the server: one head a domain, by number of images within it; which one is a node's own."""

from typing import Any

import numpy as np
from support import ask, federation, node

from fedshift_core.params import Params
from fedshift_core.wire.records import encode
from fedshift_strategies.federation.roster import Node
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.copa import CopaStrategy

DOMAINS = ("a", "held-out", "b", "c")


def strategy(*nodes: Node) -> CopaStrategy:
    server = CopaStrategy(federation(domains=DOMAINS), Params(), lambda result, weights: None)
    server.roster._nodes = {one.node_id: one for one in nodes}
    server.start_run(encode(weights(0.5)))
    return server


def weights(value: float) -> dict[str, Any]:
    return {
        "encoder.weight": np.ones(3, np.float32), "classifier.weight": np.full((3, 2), value, np.float32),
        "classifier.bias": np.full(3, -value, np.float32),
    }  # fmt: skip


def sent_by(one: Node, value: float) -> Update:
    return Update(one, encode(weights(value)), {}, one.num_examples, {})


NODES = [node(0, (2, 2, 2), "b"), node(1, (1, 0, 0), "a"), node(2, (1, 1, 0), "b"), node(3, (1, 0, 0), "c")]


def heads_of(server: CopaStrategy) -> list[float]:
    assert server.knowledge_for(NODES[0], ask()) is server.knowledge  # the same for all: written once
    heads = server.knowledge["heads/weight"]
    assert all((head == head[0, 0]).all() for head in heads)
    np.testing.assert_array_equal(server.knowledge["heads/bias"], -heads[:, :, 0])
    assert set(server.knowledge) == {"heads/weight", "heads/bias"}
    return [float(head[0, 0]) for head in heads]


def test_heads_are_averaged_within_a_domain_and_an_absent_domain_keeps_its_own() -> None:
    server = strategy(*NODES)
    server.merge_knowledge([sent_by(NODES[0], 1.0), sent_by(NODES[1], 7.0), sent_by(NODES[2], 5.0)])
    assert heads_of(server) == [7.0, 2.0, 0.5]  # (6 * 1 + 2 * 5) / 8 = 2
    server.merge_knowledge([sent_by(NODES[3], 9.0)])
    assert heads_of(server) == [7.0, 2.0, 9.0]


def test_a_domain_that_comes_later_takes_its_place() -> None:
    server = strategy(*NODES[:1])
    assert heads_of(server) == [0.5]
    assert server.tell(NODES[1], ask()) == {}
    server.merge_knowledge([sent_by(NODES[0], 1.0), sent_by(NODES[1], 7.0)])
    assert heads_of(server) == [7.0, 1.0]
    assert [server.tell(of, ask()) for of in NODES[:2]] == [{"head": 1}, {"head": 0}]
    assert server.state["domains"].tolist() == [0, 2]
