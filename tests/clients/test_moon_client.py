"""MOON on a node: its references, with and without a projection, and its memory."""

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import C, fit, image_set, new_client, shared
from support import batch as batch_of

from fedshift_clients.base import DomainClient
from fedshift_clients.methods.moon import MoonClient, model_contrast
from fedshift_clients.training.batches import Batch
from fedshift_clients.training.settings import ImageConfig

client = partial(
    new_client, MoonClient, train_set=image_set(12, classes=C), images=ImageConfig(crop_padding=2), epochs=1,
    batch_size=4,
)  # fmt: skip


def batch(first: int = 5) -> Batch:
    return batch_of(4, first, classes=C)


def other_weights(of: DomainClient) -> list[NDArray[Any]]:
    """What another server might send: the node's arrays, each a little off."""
    rng = np.random.default_rng(7)
    arrays = shared(of)
    return [a if a.dtype == np.int64 else a + rng.normal(0, 0.02, a.shape).astype(np.float32) for a in arrays]


# --- Eq. 3 and 4 -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "model", "bn"),
    [({"tau": 0.1}, "cnn", "average"), ({"projection": "mlp"}, "cnn_bn", "average"), ({}, "cnn_bn", "local")],
)
def test_the_contrast_is_of_the_model_the_received_one_and_the_nodes_previous_one(
    params: dict[str, Any], model: str, bn: str
) -> None:
    made = client({"mu": 2.0} | params, model=model, bn=bn)
    previous, _ = fit(made, 1)
    received = other_weights(made)
    made.take(received)
    made.start_round(2)
    private = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    with torch.no_grad():  # local training has moved the weights
        for p in made.model.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    models = [copy.deepcopy(made.model).train()]
    for arrays in (received, previous):
        models.append(client(params, model=model, bn=bn).model.eval())
        sent = {name: torch.from_numpy(array) for name, array in zip(made.shared_names, arrays, strict=True)}
        models[-1].load_state_dict(private | sent)
    made.model.train()
    for first in range(2):
        given = batch(first)
        terms = made.loss(given)
        with torch.no_grad():
            features = [each.encoder(given.x) for each in models]
            ce = torch.nn.functional.cross_entropy(models[0].classifier(features[0]), given.y)
            if params.get("projection") == "mlp":
                features = [each.classifier.projection(h) for each, h in zip(models, features, strict=True)]
        wanted = 2 * model_contrast(features[0], features[1], features[2], made.params.tau)
        assert list(terms) == ["ce", "contrast"]
        torch.testing.assert_close(terms["contrast"].detach(), wanted, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(terms["ce"].detach(), ce)


# --- what is kept ----------------------------------------------------------------------------------
