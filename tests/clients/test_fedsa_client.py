"""FedSA on a node: its margin is the larger gap, of the anchors or of what the node sent last."""

from functools import partial

import numpy as np
import torch
from method_cases import CASES
from support import (
    barred_images,
    batch,
    begun,
    fit,
    image_set,
    new_client,
)  # fmt: skip

from fedshift_clients.methods.fedsa import FedSAClient, margin_contrast, mean_gap
from fedshift_core.arrays import Arrays


def anchors() -> Arrays:
    return CASES["fedsa"].sent()


client = partial(new_client, FedSAClient, knowledge=anchors(), epochs=1)


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
