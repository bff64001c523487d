"""FedIIR on the server: the moving mean of head gradients, what it expects, and to whom it is sent."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support import check_knowledge, new_strategy, node

from fedshift_core.wire.records import encode
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.fediir import GRADIENT, FedIIRStrategy

P = 9  # C x D + C


def strategy(**params: Any) -> FedIIRStrategy:
    made = new_strategy(FedIIRStrategy, **params)
    made._global = encode({
        "encoder.weight": np.ones(5, np.float32), "classifier.weight": np.ones((3, 2), np.float32),
        "classifier.bias": np.ones(3, np.float32), "classifier.bn.running_var": np.ones(3, np.float32),
        "classifier.bn.num_batches_tracked": np.ones((), np.int64),
    })  # fmt: skip
    return made


def sent(gradient: Any, images: int = 1) -> Update:
    return Update(node(), encode({}), {GRADIENT: np.array(gradient, np.float32)}, images, {})


@settings(max_examples=25)
@given(st.integers(0, 1000), st.integers(1, 5), st.floats(0, 0.99))
def test_the_moving_mean_against_numpy(seed: int, nodes: int, decay: float) -> None:
    rng = np.random.default_rng(seed)
    server, g = strategy(ema=decay), np.zeros(P)
    for _ in range(3):
        gradients = rng.normal(size=(nodes, P)).astype(np.float32)
        server.merge_knowledge([sent(row, images=1 + 10 * i) for i, row in enumerate(gradients)])
        g = decay * g + (1 - decay) * gradients.mean(axis=0, dtype=np.float64)
    assert server.knowledge[GRADIENT].dtype == np.float32
    np.testing.assert_allclose(server.knowledge[GRADIENT], g, rtol=1e-4, atol=1e-6)


def test_each_weight_of_the_head_has_a_number_and_no_other() -> None:
    server = strategy()
    assert server.expected() == {GRADIENT: (P,)}
    check_knowledge(server, sent(np.ones(P)).knowledge)
