"""FedProto on a node: shared weights, and classification by the nearest prototype."""

from functools import partial

import numpy as np
from support import (
    ROUND,
    D,
    N,
    batch,
    begun,
    features_of,
    image_set,
    new_client,
    normalised,
)
from support import global_prototypes as prototypes_of

from fedshift_clients.methods.fedproto import FedProtoClient
from fedshift_clients.models.networks import batchnorm_names
from fedshift_core.wire.names import CORRECT, COUNT, DOMAINS, LOSS_SUM, SERVER_ROUND

client = partial(new_client, FedProtoClient)
global_prototypes = partial(prototypes_of, (0, 2, 3))


def test_prototypes_of_no_class_are_none() -> None:
    none = {"prototypes": np.zeros((0, D), np.float32), "labels": np.zeros(0, np.int64)}
    assert list(begun(client({}, none)).loss(batch())) == ["ce"]


# --- what stays on the node ------------------------------------------------------------------------


def test_shared_weights_leave_what_fedavg_leaves() -> None:
    made = client({"share_weights": True}, model="cnn_bn", bn="local")
    assert set(made.model.state_dict()) - set(made.shared_names) == batchnorm_names(made.model)
    assert FedProtoClient.personal(made.model, made.setup.model, made.params)


# --- what a node contributes -----------------------------------------------------------------------


# --- prediction ------------------------------------------------------------------------------------


def test_evaluation_by_prototype_is_finite_and_counts_right() -> None:
    test = image_set()
    made = client({"predict_by": "prototype"}, global_prototypes(), train_set=test)
    _, number, metrics = made.evaluate([], {DOMAINS: ["a"], SERVER_ROUND: ROUND})
    assert (number, metrics[COUNT + "a"]) == (N, N)
    assert np.isfinite(metrics[LOSS_SUM + "a"])
    h, g = features_of(made.model, normalised(test, made.setup.images)), global_prototypes()["prototypes"]
    right = sum(
        [0, 2, 3][int(np.argmin([((row - p) ** 2).sum() for p in g]))] == k for row, k in zip(h, test.y, strict=True)
    )
    assert metrics[CORRECT + "a"] == right
