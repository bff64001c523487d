"""FedGH on a node: the global head in its model's place, a body of its own."""

from functools import partial

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


client = partial(new_client, FedGHClient, epochs=1)


def test_the_global_head_takes_the_place_of_the_nodes_own() -> None:
    made = client(knowledge=head())
    made.evaluate([], {SERVER_ROUND: 1, DOMAINS: []})
    before = weights(made)
    assert np.array_equal(before["classifier.weight"], head()["head/weight"])
    assert np.array_equal(before["classifier.bias"], head()["head/bias"])
    fit(made, 2)
    after = weights(made)
    assert changed(before, after) == set(before)  # both parts train
    made.knowledge = head(1)
    made.evaluate([], {SERVER_ROUND: 2, DOMAINS: []})
    assert changed(after, weights(made)) == {"classifier.weight", "classifier.bias"}
    assert np.array_equal(weights(made)["classifier.bias"], head(1)["head/bias"])
