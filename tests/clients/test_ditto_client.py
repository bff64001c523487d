"""Ditto on a node: both models against loops in NumPy, what is sent, and what is scored."""

import copy
from typing import Any

import numpy as np
import pytest
from slow_terms import softmax
from support import C, Float, fit, image_set, new_client, same, scored_weights, shared
from torch import nn

from fedshift_clients.methods.ditto import PERSONAL, DittoClient
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training.batches import Batch

LINEAR = ["classifier.weight", "classifier.bias"]


class Watched(DittoClient):
    """Notes the batches of each phase."""

    def terms_of(self, batch: Batch) -> dict[str, Any]:
        self.seen.append((self.phase.loss is not None, copy.deepcopy(batch)))
        return super().terms_of(batch)


def own(made: DittoClient) -> dict[str, Any]:
    """Return v_n as the node keeps it, by state-dict name."""
    return {name.removeprefix(PERSONAL): array for name, array in made.memory.items() if name.startswith(PERSONAL)}


def stepped(at: list[Float], held_to: list[Float], batch: Batch, lr: float, weight: float) -> list[Float]:
    """Return matrix and bias of softmax regression after a step on CE + weight decay + weight/2 ||at - held_to||^2."""
    x, y = batch.x.double().numpy().reshape(len(batch.y), -1), batch.y.numpy()
    slope = (softmax(x @ at[0].T + at[1]) - np.eye(C)[y]) / len(y)
    gradient = [slope.T @ x, slope.sum(axis=0)]
    return [a - lr * (g + 0.01 * a + weight * (a - w)) for a, g, w in zip(at, gradient, held_to, strict=True)]


@pytest.mark.parametrize(("weight", "lr"), [(0.5, None), (2.0, 0.02), (0.0, 0.02)])
def test_both_models_against_numpy(weight: float, lr: float | None) -> None:
    """Softmax regression on pixels, three rounds, in each of which the server sends other weights."""
    params = {"lambda_prox": weight, "personal_lr": lr, "personal_epochs": 3}
    network, rng = SplitModel(nn.Flatten(), 3 * 32 * 32, C), np.random.default_rng(0)
    made = new_client(Watched, params, network=network, lr=0.01, momentum=0.0, weight_decay=0.01)
    v, sent = [array.astype(np.float64) for array in shared(made)], shared(made)
    for server_round in (1, 2, 3):
        made.seen: list[Any] = []
        trained = fit(made, server_round, sent)[0]
        received = [array.astype(np.float64) for array in sent]
        w = received
        for personal, batch in made.seen:
            if personal:
                v = stepped(v, received, batch, lr or 0.01, weight)
            else:
                w = stepped(w, received, batch, 0.01, 0.0)
        assert [personal for personal, _ in made.seen] == [False] * 6 + [True] * 9  # 20 images in batches of eight
        for name, found, slow, kept in zip(LINEAR, trained, w, v, strict=True):
            np.testing.assert_allclose(found, slow, atol=1e-6)
            np.testing.assert_allclose(own(made)[name], kept, atol=1e-6)
        sent = [array + rng.normal(0, 0.01, array.shape).astype(np.float32) for array in trained]


def test_scores_are_those_of_the_personal_model_where_the_node_has_one() -> None:
    test = image_set(seed=5)
    made = new_client(DittoClient, model="cnn_bn")
    given = shared(made)
    made.take(given)
    assert same(list(scored_weights(made, test)[1][0].values()), given)
    fit(made, 1)
    made.take(given)
    _, (scored,) = scored_weights(made, test)
    assert scored.keys() == own(made).keys() and same(list(scored.values()), [own(made)[name] for name in scored])
    assert same(shared(made), given)
