"""FedTGP on a node: FedProto's client with another weight."""

import numpy as np
import pytest
from pydantic import ValidationError
from support import batch, begun, check_accepted, features_of, fit, global_prototypes, new_client

from fedshift_clients.methods.fedtgp import FedTGPClient
from fedshift_core.methods.fedtgp import FedTGPParams
from fedshift_strategies.methods.fedtgp import FedTGPStrategy


def test_it_is_drawn_to_the_trained_prototype_of_its_class_ten_times_the_mean_square() -> None:
    made, given = begun(new_client(FedTGPClient, knowledge=global_prototypes((0, 1, 2, 3)))), batch()
    z, g = features_of(made.model, given.x), made.knowledge["prototypes"].astype(np.float64)
    distance = np.mean([((z[i] - g[int(y)]) ** 2).mean() for i, y in enumerate(given.y)])
    terms = made.loss(given)
    assert list(terms) == ["ce", "proto"]
    assert float(terms["proto"].detach()) == pytest.approx(10 * distance, rel=1e-4)


def test_the_whole_model_stays_and_networks_may_differ() -> None:
    made = new_client(FedTGPClient, knowledge=global_prototypes())
    assert made.shared_names == [] and FedTGPClient.heterogeneous and FedTGPClient.equal_features
    fit(made)
    check_accepted(made, FedTGPStrategy)
    with pytest.raises(ValidationError):
        FedTGPParams(lambda_proto=-1.0)
