"""FedRCL on a node: its terms over the levels of the network, also with modules."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import batch, begun, flat_gradients, new_client
from torch.nn import functional as F

from fedshift_clients.losses.common import cosines as cosines_of
from fedshift_clients.methods import fedrcl as terms
from fedshift_clients.methods.fedrcl import FedRCLClient

client = partial(new_client, FedRCLClient)


def values(params: dict[str, Any] | None = None, **options: Any) -> dict[str, float]:
    return {name: value for name, (value, _) in flat_gradients(begun(client(params, **options)), batch()).items()}


@pytest.mark.parametrize("relu", [False, True])
def test_terms_are_the_mean_over_the_levels(relu: bool) -> None:
    given, encoder = batch(), client().model.encoder
    with torch.no_grad():
        first = encoder[0](given.x)
        second = encoder[3](F.max_pool2d(first.relu(), 2))
        third = encoder[7](F.max_pool2d(second.relu(), 2).flatten(1))
    levels = [first.mean((2, 3)), second.mean((2, 3)), third]
    cosines = [cosines_of(f.relu() if relu else f) for f in levels]
    got = values({"feature_relu": relu, "lambda_scl": 2.0, "lambda_penalty": 3.0, "tau": 0.3})
    scl = [float(terms.hard_contrast(s, given.y, 0.3, 2)) for s in cosines]
    penalty = [float(terms.divergence_penalty(s, given.y, 0.3, 0.7)) for s in cosines]
    assert list(got) == ["ce", "scl", "penalty"]
    assert got["scl"] == pytest.approx(2 * np.mean(scl), rel=1e-3)
    assert got["penalty"] == pytest.approx(3 * np.mean(penalty), rel=1e-3)
    last = values({"feature_relu": relu, "lambda_scl": 2.0, "tau": 0.3, "levels": "last"})
    assert last["scl"] == pytest.approx(2 * scl[-1], rel=1e-3)
