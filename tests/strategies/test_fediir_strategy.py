"""FedIIR on the server: the moving mean of head gradients, what it expects, and to whom it is sent."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ask, check_knowledge, new_strategy, node

from fedshift_core.limits import Refused
from fedshift_core.wire.records import encode
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.fediir import GRADIENT, FedIIRStrategy, moved

P = 9  # C x D + C


def strategy(**params: Any) -> FedIIRStrategy:
    made = new_strategy(FedIIRStrategy, **params)
    made._global = encode({
        "encoder.weight": np.ones(5, np.float32), "classifier.weight": np.ones((3, 2), np.float32),
        "classifier.bias": np.ones(3, np.float32),
    })  # fmt: skip
    return made


def sent(gradient: Any, images: int = 1) -> Update:
    return Update(node(), encode({}), {GRADIENT: np.array(gradient, np.float32)}, images, {})


@settings(max_examples=25)
@given(st.integers(0, 1000), st.integers(1, 5), st.floats(0, 0.99))
def test_the_moving_mean_against_loops(seed: int, nodes: int, decay: float) -> None:
    rng = np.random.default_rng(seed)
    server, g = strategy(ema=decay), [0.0] * P
    for _ in range(3):
        gradients = rng.normal(size=(nodes, P)).astype(np.float32)
        server.merge_knowledge([sent(row, images=1 + 10 * i) for i, row in enumerate(gradients)])
        g = [decay * g[j] + (1 - decay) * sum(float(row[j]) for row in gradients) / nodes for j in range(P)]
    assert server.knowledge[GRADIENT].dtype == np.float32
    np.testing.assert_allclose(server.knowledge[GRADIENT], g, rtol=1e-4, atol=1e-6)


def test_it_begins_at_zero_and_forgets_nothing_at_once() -> None:
    first = moved(None, [np.ones(2, np.float32)], 0.95)
    np.testing.assert_allclose(first, 0.05)
    np.testing.assert_allclose(moved(first, [np.zeros(2, np.float32)], 0.95), 0.0475)
    np.testing.assert_array_equal(moved(first, [np.full(2, 7, np.float32)], 0.0), [7, 7])


def test_each_weight_of_the_head_has_a_number_and_no_other() -> None:
    server = strategy()
    assert server.expected() == {GRADIENT: (P,)}
    check_knowledge(server, sent(np.ones(P)).knowledge)
    for wrong in (np.ones(P - 1), np.full(P, np.nan), np.ones((P, 1))):
        with pytest.raises(Refused):
            check_knowledge(server, sent(wrong).knowledge)


def test_it_is_sent_where_a_node_trains_and_switched_off_nothing_travels() -> None:
    server = strategy()
    assert server.knowledge_for(node(), ask()) == {}
    server.merge_knowledge([sent(np.ones(P))])
    assert server.knowledge_for(node(), ask()) is server.knowledge
    assert server.knowledge_for(node(), ask(trains=False)) == {}
    assert FedIIRStrategy.needs_single(server.params) == "it needs head-gradient of each node"  # it has class rows
    off = strategy(lambda_iir=0.0)
    off.merge_knowledge([Update(node(), encode({}), {}, 1, {})])
    assert off.expected() == off.knowledge == {}
