"""FPL on a node: its three terms against NumPy, every switch against the term it names."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import (
    ROUND,
    C,
    D,
    Float,
    N,
    batch,
    begun,
    check_accepted,
    fit,
    flat_gradients,
    image_set,
    new_client,
    normalised,
)
from torch import Tensor

from fedshift_clients.methods.fpl import FPLClient
from fedshift_clients.models.networks import SplitModel, build
from fedshift_clients.training.batches import Batch
from fedshift_strategies.methods.fpl import FPLStrategy

CLASSES = [0, 0, 2, 3, 3, 3]  # of the cluster prototypes: class 1 has none
client = partial(new_client, FPLClient)


def clusters() -> dict[str, NDArray[Any]]:
    p = np.random.default_rng(1).uniform(size=(len(CLASSES), D)).astype(np.float32)
    return {"prototypes": p, "labels": np.array(CLASSES)}


def started(params: dict[str, Any] | None = None, **options: Any) -> FPLClient:
    return begun(client(params, clusters(), **options))


def values_and_gradients(
    params: dict[str, Any], given: Batch | None = None
) -> dict[str, tuple[float, NDArray[np.float32]]]:
    return flat_gradients(started(params), given or batch())


def slow_terms(z: Float, logits: Float, y: list[int], tau: float) -> dict[str, float]:
    """All three terms from features and logits; samples of class 1, which has no prototype, are left out of two."""
    p = clusters()["prototypes"].astype(np.float64)
    members = {k: [p[j] for j in range(len(CLASSES)) if CLASSES[j] == k] for k in set(CLASSES)}
    entropy, contrast, consistency = [], [], []
    for i in range(len(y)):
        entropy.append(-np.log(np.exp(logits[i][y[i]]) / np.exp(logits[i]).sum()))
        if y[i] in members:
            s = [float(z[i] @ row) / float(np.linalg.norm(z[i]) * np.linalg.norm(row)) for row in p]
            positive = sum(np.exp(s[j] / tau) for j in range(len(s)) if CLASSES[j] == y[i])
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


@pytest.mark.parametrize(
    ("params", "term"), [({"use_cpcl": False}, "cpcl"), ({"use_upcr": False}, "upcr"), ({"tau": 0.5}, "cpcl")]
)
def test_switch_changes_exactly_the_term_it_names(params: dict[str, Any], term: str) -> None:
    default, switched = values_and_gradients({}), values_and_gradients(params)
    off = term not in switched
    assert off == (False in params.values())
    assert set(switched) == set(default) - ({term} if off else set())
    for name, (value, grad) in switched.items():
        assert (value == default[name][0] and np.array_equal(grad, default[name][1])) is (name != term), name


def test_own_terms_are_positive_and_move_the_encoder_only() -> None:
    result = values_and_gradients({})
    in_encoder = sum(p.numel() for p in client().model.encoder.parameters())
    for name in ("cpcl", "upcr"):
        value, grad = result[name]
        assert value > 0
        assert np.isfinite(grad).all() and grad[:in_encoder].any()
        assert not grad[in_encoder:].any()


@pytest.mark.parametrize("y", [(1,), (1, 1, 1), (0,)])
def test_small_batches_and_classes_without_a_prototype(y: tuple[int, ...]) -> None:
    terms = values_and_gradients({}, batch(y=y))
    assert all(np.isfinite(value) and np.isfinite(grad).all() for value, grad in terms.values())
    assert all((terms[name][0] > 0) is (y == (0,)) for name in ("cpcl", "upcr"))


# --- what a node contributes -----------------------------------------------------------------------


@pytest.mark.parametrize("source", ["after_training", "last_epoch"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("classes", [C - 1, 1])
def test_contribution_is_what_the_server_accepts(source: str, precision: str, classes: int) -> None:
    made = client(
        {"proto_source": source}, clusters(), epochs=1, precision=precision, train_set=image_set(classes=classes)
    )
    _, metrics = fit(made, ROUND)
    got = made.contribution()
    check_accepted(made, FPLStrategy)
    assert got["counts"].tolist() == ([7, 7, 6, 0] if classes > 1 else [N, 0, 0, 0])
    assert not got["prototypes"][3].any()
    terms = [value for name, value in metrics.items() if name.startswith("loss/")]
    assert len(terms) == 3 and np.isfinite(terms).all()
    assert metrics["loss"] == pytest.approx(sum(terms))


def test_prototypes_after_training_are_not_augmented() -> None:
    made, train_set = client({}, clusters(), epochs=1), image_set()
    fit(made, ROUND)
    with torch.no_grad():
        h = made.model.encoder(normalised(train_set, made.setup.images)).numpy()
    for k in range(C - 1):
        np.testing.assert_allclose(
            made.contribution()["prototypes"][k], h[train_set.y == k].mean(axis=0), rtol=1e-4, atol=1e-5
        )


def test_last_epoch_gathers_what_training_saw() -> None:
    made = started({"proto_source": "last_epoch"})
    for epoch in range(2):
        made.start_epoch(epoch)
        given = batch(first=epoch, y=(0, 1, 2, 0))
        made.loss(given)
    with torch.no_grad():
        h = made.model.encoder(given.x).numpy()
    got = made.finish_round(ROUND)
    assert got["counts"].tolist() == [2, 1, 1, 0]
    np.testing.assert_allclose(got["prototypes"][0], (h[0] + h[3]) / 2, rtol=1e-4, atol=1e-6)
