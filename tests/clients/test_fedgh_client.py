"""FedGH on a node: the global head in its model's place, a body of its own."""

from typing import Any

import numpy as np
from support import C, D, changed, fit, new_client, weights

from fedshift_clients.methods.fedgh import FedGHClient
from fedshift_core.arrays import Arrays
from fedshift_core.wire.names import DOMAINS, SERVER_ROUND


def head(seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        "head/weight": rng.normal(size=(C, D)).astype(np.float32), "head/bias": rng.normal(size=C).astype(np.float32)
    }  # fmt: skip


def client(knowledge: Arrays | None = None, **options: Any) -> FedGHClient:
    return new_client(FedGHClient, None, knowledge, **{"epochs": 1} | options)


def test_the_global_head_takes_the_place_of_the_nodes_own() -> None:
    made = client(head())
    made.evaluate([], {SERVER_ROUND: 1, DOMAINS: []})
    state = made.model.state_dict()
    assert np.array_equal(state["classifier.weight"].numpy(), head()["head/weight"])
    assert np.array_equal(state["classifier.bias"].numpy(), head()["head/bias"])
    before = weights(made)
    fit(made, 2)
    assert changed(before, weights(made)) == set(before)  # both parts train
    body = {name: array for name, array in weights(made).items() if name.startswith("encoder.")}
    made.knowledge = head(1)
    made.evaluate([], {SERVER_ROUND: 2, DOMAINS: []})
    assert np.array_equal(weights(made)["classifier.bias"], head(1)["head/bias"])
    assert not changed(body, {name: weights(made)[name] for name in body})
