"""FedTGP on a node: FedProto's client with another weight."""

import numpy as np
import pytest
from support import batch, begun, features_of, global_prototypes, new_client

from fedshift_clients.methods.fedtgp import FedTGPClient


def test_it_is_drawn_to_the_trained_prototype_of_its_class_ten_times_the_mean_square() -> None:
    made, given = begun(new_client(FedTGPClient, knowledge=global_prototypes((0, 1, 2, 3)))), batch()
    z, g = features_of(made.model, given.x), made.knowledge["prototypes"].astype(np.float64)
    distance = np.mean([((z[i] - g[int(y)]) ** 2).mean() for i, y in enumerate(given.y)])
    terms = made.loss(given)
    assert list(terms) == ["ce", "proto"]
    assert float(terms["proto"].detach()) == pytest.approx(10 * distance, rel=1e-4)
