"""COPA on a node: its domain's head, the others, the ensemble."""

from typing import Any

import numpy as np
import pytest
import torch
from method_cases import domain_heads
from support import (
    features_of,
    new_client,
    normalised,
    shared,
)  # fmt: skip

from fedshift_clients.methods.copa import CopaClient
from fedshift_core.arrays import Arrays
from fedshift_core.wire.names import DOMAINS, LOCAL_DOMAINS, SERVER_ROUND

M = 3


def client(params: dict[str, Any] | None = None, knowledge: Arrays | None = None, own: int = 1) -> CopaClient:
    return new_client(
        CopaClient, params, domain_heads() if knowledge is None else knowledge, scalars={"head": own}, epochs=1
    )


def probabilities(z: np.ndarray, place: int) -> np.ndarray:
    given = domain_heads()
    logits = z @ given["heads/weight"][place].astype(np.float64).T + given["heads/bias"][place]
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("own", [0, None])
@pytest.mark.parametrize("form", ["probabilities", "logits"])
def test_every_node_scores_by_all_heads(own: int | None, form: str) -> None:
    """The domain of the node makes no difference, bit for bit: one global model."""
    made = client({"ensemble": form}, own=own or 0)
    if own is None:
        made.scalars = {}
    made.evaluate(shared(made), {SERVER_ROUND: 1, DOMAINS: []})
    made.model.eval()
    x = normalised(made.train_set, made.setup.images)
    with torch.no_grad():
        predictions = made.predict(x)
    z = features_of(made.model, x)
    if form == "probabilities":
        np.testing.assert_allclose(
            predictions.exp().numpy(), np.mean([probabilities(z, m) for m in range(M)], axis=0), atol=1e-5
        )
    first = client({"ensemble": form}, own=2)
    first.evaluate(shared(client()), {SERVER_ROUND: 1, DOMAINS: []})
    first.model.eval()
    with torch.no_grad():
        assert torch.equal(first.predict(x), predictions)


def test_right_after_training_a_nodes_own_model_is_its_own_head() -> None:
    made = client()
    _, _, metrics = made.fit(shared(made), {SERVER_ROUND: 1, LOCAL_DOMAINS: ["a"]})
    with torch.no_grad():
        logits = made.model.eval()(normalised(made.train_set, made.setup.images))[1]
    assert metrics["local-correct/a"] == int((logits.argmax(dim=1).numpy() == made.train_set.y).sum())
