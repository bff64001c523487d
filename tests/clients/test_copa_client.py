"""COPA on a node: its domain's head, the others, the ensemble."""

from functools import partial

import numpy as np
import pytest
import torch
from method_cases import domain_heads
from slow_terms import softmax
from support import (
    features_of,
    new_client,
    normalised,
    shared,
)  # fmt: skip

from fedshift_clients.methods.copa import CopaClient
from fedshift_core.wire.names import DOMAINS, LOCAL_DOMAINS, SERVER_ROUND

client = partial(new_client, CopaClient, knowledge=domain_heads(), scalars={"head": 1}, epochs=1)


@pytest.mark.parametrize("own", [{"head": 0}, {}])
@pytest.mark.parametrize("form", ["probabilities", "logits"])
def test_every_node_scores_by_all_heads(own: dict[str, int], form: str) -> None:
    """The domain of the node makes no difference, bit for bit: one global model."""
    x, found = normalised(client().train_set, client().setup.images), []
    for scalars in (own, {"head": 2}):
        made = client({"ensemble": form}, scalars=scalars)
        made.evaluate(shared(client()), {SERVER_ROUND: 1, DOMAINS: []})
        made.model.eval()
        with torch.no_grad():
            found.append(made.predict(x))
    assert torch.equal(*found)
    if form == "probabilities":
        weights, biases = domain_heads().values()
        p = softmax(np.einsum("mcd,bd->mbc", weights, features_of(made.model, x)) + biases[:, None])
        np.testing.assert_allclose(found[0].exp().numpy(), p.mean(0), atol=1e-5)


def test_right_after_training_a_nodes_own_model_is_its_own_head() -> None:
    made = client()
    _, _, metrics = made.fit(shared(made), {SERVER_ROUND: 1, LOCAL_DOMAINS: ["a"]})
    with torch.no_grad():
        logits = made.model.eval()(normalised(made.train_set, made.setup.images))[1]
    assert metrics["local-correct/a"] == int((logits.argmax(dim=1).numpy() == made.train_set.y).sum())
