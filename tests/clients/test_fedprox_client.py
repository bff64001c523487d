"""FedProx on a node: the parameters that its term holds."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import C, Extra, fit, image_set, new_client, shared
from support import batch as batch_of

from fedshift_clients.base import DomainClient
from fedshift_clients.methods.fedprox import FedProxClient
from fedshift_clients.models.networks import batchnorm_names
from fedshift_clients.training.settings import ImageConfig

batch = partial(batch_of, 4, 5, classes=C)


def client(params: dict[str, Any] | None = None, *, kind: Any = FedProxClient, **options: Any) -> DomainClient:
    train: dict[str, Any] = {"images": ImageConfig(crop_padding=2), "batch_size": 4}
    made: DomainClient = new_client(kind, params, train_set=image_set(12, classes=C), **train | options)
    return made


def started(params: dict[str, Any] | None = None, **options: Any) -> DomainClient:
    """A client to which the server has sent what it has, before its first batch."""
    made = client(params, **options)
    made.take(shared(made))
    made.start_round(1)
    return made


def moved(of: DomainClient, by: float = 0.01) -> None:
    """Move every parameter and every floating buffer, each by a number of its own."""
    with torch.no_grad():
        for i, tensor in enumerate(of.model.state_dict().values()):
            if tensor.is_floating_point():
                tensor.add_(by * (i + 1))


def half_squared_distance(of: DomainClient, start: dict[str, NDArray[Any]], names: list[str]) -> float:
    state = of.model.state_dict()
    return sum(0.5 * float(((state[n].numpy().astype(np.float64) - start[n]) ** 2).sum()) for n in names)


def snapshot(of: DomainClient) -> dict[str, NDArray[Any]]:
    return {name: tensor.numpy().astype(np.float64) for name, tensor in of.model.state_dict().items()}


@pytest.mark.parametrize(("bn", "private"), [("average", False), ("local", True)])
def test_term_is_over_the_parameters_that_travel(bn: str, private: bool) -> None:
    made = started({"mu": 0.3}, model="cnn_bn", bn=bn, modules=[Extra(private)])
    start = snapshot(made)
    moved(made)
    names = [name for name, _ in made.model.named_parameters()]
    if bn == "local":
        names = [name for name in names if name not in batchnorm_names(made.model) and "extra" not in name]
    terms = made.loss(batch())
    assert list(terms) == ["ce", "prox"]
    assert float(terms["prox"].detach()) == pytest.approx(0.3 * half_squared_distance(made, start, names), rel=1e-4)


def test_received_weights_are_those_of_the_round_not_of_the_node() -> None:
    """Each round starts from what the server sent: the term begins at zero."""
    made = client({"mu": 1.0})
    for server_round in (1, 2):
        fit(made, server_round)
    given = [array + np.float32(0.5) for array in shared(made)]
    made._load(given)
    made.start_round(3)
    assert float(made.loss(batch())["prox"].detach()) == 0
    moved(made)
    assert float(made.loss(batch())["prox"].detach()) > 0
