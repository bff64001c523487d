"""FPL on a node: its three terms against NumPy, every switch against the term it names."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import CLUSTERS, clusters
from support import (
    ROUND,
    C,
    D,
    Float,
    batch,
    begun,
    new_client,
)
from torch import Tensor

from fedshift_clients.methods.fpl import FPLClient
from fedshift_clients.models.networks import SplitModel, build

client = partial(new_client, FPLClient)


def started(params: dict[str, Any] | None = None, **options: Any) -> FPLClient:
    return begun(client(params, clusters(), **options))


def slow_terms(z: Float, logits: Float, y: list[int], tau: float) -> dict[str, float]:
    """All three terms from features and logits; samples of class 1, which has no prototype, are left out of two."""
    p = clusters()["prototypes"].astype(np.float64)
    members = {k: [p[j] for j in range(len(CLUSTERS)) if CLUSTERS[j] == k] for k in set(CLUSTERS)}
    entropy, contrast, consistency = [], [], []
    for i in range(len(y)):
        entropy.append(-np.log(np.exp(logits[i][y[i]]) / np.exp(logits[i]).sum()))
        if y[i] in members:
            s = [float(z[i] @ row) / float(np.linalg.norm(z[i]) * np.linalg.norm(row)) for row in p]
            positive = sum(np.exp(s[j] / tau) for j in range(len(s)) if CLUSTERS[j] == y[i])
            contrast.append(-np.log(positive / sum(np.exp(v / tau) for v in s)))
            u = sum(members[y[i]]) / len(members[y[i]])
            consistency.append(sum((z[i][d] - u[d]) ** 2 for d in range(D)) / D)
    return {"ce": float(np.mean(entropy)), "cpcl": float(np.mean(contrast)), "upcr": float(np.mean(consistency))}


# --- the loss --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.02, 0.2])
def test_terms_against_numpy(tau: float) -> None:
    made, given = started({"tau": tau}), batch()
    with torch.no_grad():
        z, logits = (part.numpy().astype(np.float64) for part in made.model(given.x))
    terms = made.loss(given)
    assert list(terms) == ["ce", "cpcl", "upcr"]
    for name, expected in slow_terms(z, logits, given.y.tolist(), tau).items():
        assert float(terms[name].detach()) == pytest.approx(expected, rel=1e-3), name


class Doubled(SplitModel):
    """A model with something put around it, as modules do: features are twice the encoder's."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = 2 * self.encoder(x)
        return features, self.classifier(features)


def test_terms_and_prototypes_are_of_the_features_that_the_whole_model_gives() -> None:
    inner = build("cnn", C, 0)
    model = Doubled(inner.encoder, D, C)
    model.classifier = inner.classifier
    made, given = started({"tau": 0.2}, network=model), batch()
    with torch.no_grad():
        z = 2 * inner.encoder(given.x)
        logits = inner.classifier(z).numpy().astype(np.float64)
    expected = slow_terms(z.numpy().astype(np.float64), logits, given.y.tolist(), 0.2)
    for name, term in made.loss(given).items():
        assert float(term.detach()) == pytest.approx(expected[name], rel=1e-3), name
    plain = started()
    np.testing.assert_allclose(
        made.finish_round(ROUND)["prototypes"], 2 * plain.finish_round(ROUND)["prototypes"], rtol=1e-4, atol=1e-6
    )
