"""FedMLP (an approximation) on a node: its terms against loops in float64."""

from functools import partial

import numpy as np
import pytest
import torch
from slow_terms import cosines
from support import (
    Float,
    batch,
    begun,
    features_of,
    global_prototypes,
    new_client,
)  # fmt: skip

from fedshift_clients.methods.fedmlp import FedMLPClient, semantic_prototypes

client = partial(new_client, FedMLPClient)


def slow_semantic(p: Float, tau: float) -> Float:
    alike = np.exp(cosines(p, p) / tau)
    return np.asarray(alike @ p / alike.sum(1, keepdims=True))


@pytest.mark.parametrize("tau", [0.5, 0.05])
def test_terms_against_numpy(tau: float) -> None:
    params = {"tau": tau, "lambda_proto": 2.0, "lambda_semantic": 3.0}
    made, given, (p, classes) = begun(client(params, global_prototypes())), batch(), global_prototypes().values()
    of_class, wanted = {int(k): place for place, k in enumerate(classes)}, {}
    has = [i for i, y in enumerate(given.y.tolist()) if y in of_class]  # class 1 has no prototype
    z, places = features_of(made.model, given.x)[has], [of_class[y] for y in given.y[has].tolist()]
    assert 0 < len(has) < len(given.y)
    for name, weight, targets in (("proto", 2.0, p), ("semantic", 3.0, slow_semantic(p.astype(float), tau))):
        wanted[name] = pytest.approx(weight * ((z - targets[places]) ** 2).mean(), rel=1e-4)
    assert {name: float(term.detach()) for name, term in made.loss(given).items() if name != "ce"} == wanted


def test_semantic_prototypes_lie_between_those_that_are_alike() -> None:
    p, present = torch.tensor([[1.0, 0], [9.0, 9.0], [0, 2]]), torch.tensor([True, False, True])
    assert torch.allclose(semantic_prototypes(p, present, 1e-3)[[0, 2]], p[[0, 2]])
    assert torch.allclose(semantic_prototypes(p, present, 1e6)[0], torch.tensor([0.5, 1.0]), atol=1e-4)
