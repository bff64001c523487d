"""FedProto on a node: shared weights, and classification by the nearest prototype."""

from functools import partial

import numpy as np
from support import ROUND, N, features_of, image_set, new_client, normalised
from support import global_prototypes as prototypes_of

from fedshift_clients.methods.fedproto import FedProtoClient
from fedshift_core.wire.names import CORRECT, COUNT, DOMAINS, LOSS_SUM, SERVER_ROUND

client = partial(new_client, FedProtoClient)
global_prototypes = partial(prototypes_of, (0, 2, 3))


# --- what stays on the node ------------------------------------------------------------------------


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
