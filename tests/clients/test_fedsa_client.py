"""FedSA on a node: three terms of the anchors, the margin by what the node sent last, the way back to FedAvg."""

from typing import Any

import numpy as np
import pytest
import torch
from support import (
    C,
    D,
    Float,
    as64,
    barred_images,
    batch,
    begun,
    features_of,
    fit,
    image_set,
    new_client,
)  # fmt: skip

from fedshift_clients.methods.fedsa import FedSAClient
from fedshift_core.arrays import Arrays


def anchors(scale: float = 1.0) -> Arrays:
    a = np.random.default_rng(7).uniform(size=(C, D)) * scale
    return {"anchors": a.astype(np.float32)}


def client(params: dict[str, Any] | None = None, knowledge: Arrays | None = None, **options: Any) -> FedSAClient:
    return new_client(FedSAClient, params, anchors() if knowledge is None else knowledge, **{"epochs": 1} | options)


def gap(points: Float) -> float:
    return float(np.mean([min(np.linalg.norm(p - q) for j, q in enumerate(points) if j != i)
                          for i, p in enumerate(points)]))  # fmt: skip


@pytest.mark.parametrize(("own", "larger"), [(None, "anchors"), (0.5, "anchors"), (99.0, "own")])
def test_the_four_terms_against_numpy(own: float | None, larger: str) -> None:
    made, given = client({"lambda_calibration": 2.0, "lambda_anchor": 3.0, "lambda_margin": 5.0}), batch()
    if own is not None:
        made.memory["gap"] = np.array([own], np.float32)
    begun(made)
    a = anchors()["anchors"].astype(np.float64)
    margin = gap(a) if larger == "anchors" else own
    assert margin is not None
    z, y = features_of(made.model, given.x), given.y.tolist()
    with torch.no_grad():
        logits = as64(made.model.classifier(torch.from_numpy(anchors()["anchors"])))
    calibration = np.mean([-np.log(np.exp(logits[k][k]) / np.exp(logits[k]).sum()) for k in range(C)])
    distance = np.mean([((z[i] - a[k]) ** 2).mean() for i, k in enumerate(y)])
    contrast = 0.0
    for i, k in enumerate(y):
        d = np.linalg.norm(z[i] - a, axis=1)
        d[k] += margin
        contrast += (d[k] + np.log(np.exp(-(d - d.min())).sum()) - d.min()) / len(y)
    terms = made.loss(given)
    assert list(terms) == ["ce", "calibration", "anchor", "margin"]
    values = [float(terms[name].detach()) for name in ("calibration", "anchor", "margin")]
    assert values == pytest.approx([2 * calibration, 3 * distance, 5 * contrast], rel=1e-4)


def test_how_far_apart_its_prototypes_are_is_remembered_for_the_next_round() -> None:
    made = client(train_set=barred_images())
    assert "gap" not in made.memory
    fit(made)
    sent = made.contribution()
    assert made.memory["gap"] == pytest.approx(gap(sent["prototypes"][sent["counts"] > 0].astype(np.float64)), rel=1e-5)
    one = client(train_set=image_set(classes=1))
    fit(one)
    assert one.memory["gap"].tolist() == [0]  # the anchors' gap is taken
    without = client({"lambda_margin": 0.0})
    fit(without)
    assert "gap" not in without.memory


def test_prediction_by_the_nearest_prototype_needs_what_the_server_sends_for_it() -> None:
    made, x = client({"predict_by": "prototype"}), batch().x
    assert torch.equal(made.predict(x), made.forward(x)[1])  # anchors alone
    g = np.random.default_rng(3).normal(size=(2, D)).astype(np.float32)
    made.knowledge = anchors() | {"prototypes": g, "labels": np.array([1, 3])}
    z = features_of(made.model, x)
    nearest = [[1, 3][int(np.argmin(np.linalg.norm(row - g, axis=1)))] for row in z]
    assert made.predict(x).argmax(dim=1).tolist() == nearest
