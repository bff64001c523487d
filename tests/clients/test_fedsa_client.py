"""FedSA on a node: its margin is the larger gap, of the anchors or of what the node sent last."""

from typing import Any

import numpy as np
import torch
from support import (
    C,
    D,
    barred_images,
    batch,
    begun,
    fit,
    image_set,
    new_client,
)  # fmt: skip

from fedshift_clients.methods.fedsa import FedSAClient, margin_contrast, mean_gap
from fedshift_core.arrays import Arrays


def anchors(scale: float = 1.0) -> Arrays:
    a = np.random.default_rng(7).uniform(size=(C, D)) * scale
    return {"anchors": a.astype(np.float32)}


def client(params: dict[str, Any] | None = None, knowledge: Arrays | None = None, **options: Any) -> FedSAClient:
    return new_client(FedSAClient, params, anchors() if knowledge is None else knowledge, **{"epochs": 1} | options)


def test_the_larger_gap_is_the_margin() -> None:
    made, given = client(), batch()
    made.memory["gap"] = np.array([99.0], np.float32)
    z, a = begun(made).model.encoder(given.x), torch.from_numpy(anchors()["anchors"])
    wanted = made.params.lambda_margin * margin_contrast(z, given.y, a, torch.tensor(99.0))
    torch.testing.assert_close(made.loss(given)["margin"], wanted)


def test_how_far_apart_its_prototypes_are_is_remembered_for_the_next_round() -> None:
    made = client(train_set=barred_images())
    assert "gap" not in made.memory
    fit(made)
    sent = made.contribution()
    assert made.memory["gap"] == mean_gap(torch.from_numpy(sent["prototypes"][:3])).numpy()
    one = client(train_set=image_set(classes=1))
    fit(one)
    assert one.memory["gap"].tolist() == [0]  # the anchors' gap is taken
    without = client({"lambda_margin": 0.0})
    fit(without)
    assert "gap" not in without.memory
