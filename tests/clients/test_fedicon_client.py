"""FedICON on a node: the parts that each phase trains, the personal classifier, every switch."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support import ROUND, D, N, barred_images, fit, new_client, normalised, scored_weights, weights
from support import batch as batch_of

from fedshift_app.config.resolving import resolve
from fedshift_app.node.setup import initial_model, is_personal
from fedshift_clients.adapt.fedicon import ContrastAdaptation
from fedshift_clients.adapt.params import ContrastParams
from fedshift_clients.base import Scores
from fedshift_clients.losses.contrast import instance_contrast, supervised_contrast
from fedshift_clients.methods.fedicon import PROJECTION_WIDTH, FedICONClient
from fedshift_clients.training.settings import ImageConfig

VIEWS = ImageConfig(
    crop_padding=2, resized_crop=(0.5, 1.0), jitter=(0.4, 0.4, 0.4, 0.1), grayscale=0.2, views=2, eval_batch=33
)
CLASSIFIER = {"phase": "classifier"}

Settings = dict[str, Any]


def client(
    params: Settings | None = None, scalars: dict[str, str] | None = None, adapt: Settings | None = None, **options: Any
) -> FedICONClient:
    """A client; with ``adapt``, that adapts to test images."""
    adaptation = None if adapt is None else ContrastAdaptation(ContrastParams(**adapt))
    made = new_client(
        FedICONClient, params, scalars=scalars, adaptation=adaptation, test_set=lambda name: barred_images(15, seed=1),
        **{"train_set": barred_images(), "images": VIEWS} | options,
    )  # fmt: skip
    made.server_round = ROUND
    return made


# --- encoder rounds --------------------------------------------------------------------------------


@pytest.mark.parametrize(("supervised", "projection"), [(True, "none"), (False, "mlp")])
def test_loss_contrasts_the_two_views_of_the_batch(supervised: bool, projection: str) -> None:
    made, views = client({"supervised": supervised, "projection": projection, "tau": 0.3}), batch_of(first=1).x
    given = replace(batch_of(), second=views)
    head = made.model.get_submodule("projection") if projection == "mlp" else torch.nn.Identity()
    z, other = (head(made.model.encoder(x)) for x in (given.x, views))
    assert z.shape == (8, PROJECTION_WIDTH if projection == "mlp" else D)
    wanted = {"supcon": supervised_contrast(z, other, given.y, 0.3)}
    torch.testing.assert_close(
        made.loss(given), wanted if supervised else {"instance": instance_contrast(z, other, 0.3)}
    )


# --- classifier rounds -----------------------------------------------------------------------------


# --- test phase: the personal classifier -----------------------------------------------------------


@pytest.mark.parametrize("personal", [True, False])
def test_a_classifier_trains_on_features_of_plain_images_by_the_runs_optimiser(personal: bool) -> None:
    """The personal one before a test, and the shared one in a classifier round."""
    settings: dict[str, Any] = {"batch_size": N, "optimizer": "adamw", "weight_decay": 0.1, "lr": 0.02}
    made = client({"personal_epochs": 3, "classifier_epochs": 3}, {} if personal else CLASSIFIER, **settings)
    head = copy.deepcopy(made.model.classifier)
    with torch.no_grad():
        features = made.model.encoder(normalised(made.train_set, VIEWS))
    plain = torch.optim.AdamW(head.parameters(), lr=0.02, weight_decay=0.1)
    for _ in range(3):
        plain.zero_grad()
        torch.nn.functional.cross_entropy(head(features), torch.from_numpy(made.train_set.y)).backward()
        plain.step()
    if personal:
        _, (seen,) = scored_weights(made, barred_images(9))
    else:
        fit(made)
        seen = weights(made)
    np.testing.assert_allclose(seen["classifier.weight"], head.weight.detach().numpy(), rtol=1e-3, atol=1e-4)


# --- switches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "personal", "own_classifier"),
    [
        ({}, True, True),
        ({"classifier_training": "federated"}, True, False),
        ({"classifier_training": "federated", "tta": False}, False, False),
        ({"lie": False}, True, False),
        ({"lie": False, "tta": False, "gis": False}, True, True),
    ],
)
def test_nodes_are_scored_each_for_itself_where_they_adapt(
    settings: Settings, personal: bool, own_classifier: bool
) -> None:
    requested = " ".join(f"method.{name}={str(value).lower()}" for name, value in settings.items())
    config = resolve({"method": "fedicon", "set": requested})
    assert is_personal(config, initial_model(config)) is personal
    made = client({name: value for name, value in settings.items() if name != "tta"})
    assert FedICONClient.personal(made.model, made.setup.model, made.params) is own_classifier
    if not personal:
        assert made.score_test(barred_images(9)) == Scores(*made.score(barred_images(9)))


# --- the way back to FedAvg, determinism, edges ----------------------------------------------------
