"""The initial model of every method takes weights of the plain network."""

import pytest
from refusals import refused
from support import on_images

from fedshift_app.config import registry
from fedshift_app.config.resolving import resolve
from fedshift_app.node import setup
from fedshift_clients.models import networks, weights
from fedshift_core.errors import ConfigError

GIVEN = networks.build("resnet10", 10, 0).state_dict()
#: Its layers stand in the place of the network's.
REPLACES_LAYERS = "fdse"


def of_encoder(given: str, method: str = "fedavg") -> set[str]:
    """Return what of the plain network's encoder a run's model takes."""
    config = resolve({"experiment": "handwritten", "method": method, "set": f"model.name=resnet10 {given}"})
    taken = weights.fitted(setup.initial_model(config), GIVEN, "resnet10", "/w.pth").values
    return {name for name in taken if name.startswith("encoder.")}


@pytest.mark.parametrize("method", [name for name in on_images(registry.METHODS) if name != REPLACES_LAYERS])
def test_every_method_begins_with_pretrained_weights(method: str) -> None:
    assert of_encoder(registry.get(method).short, method) == {name for name in GIVEN if name.startswith("encoder.")}


def test_a_method_that_replaces_layers_refuses_them() -> None:
    with refused(ConfigError, "resnet10", "encoder.stem.0.dfe_bias"):
        of_encoder("", REPLACES_LAYERS)


@pytest.mark.parametrize("given", ["modules=[f2dc]", "model.projection=32", "model.freeze=stages:2"])
def test_what_is_added_to_a_network_needs_no_weights(given: str) -> None:
    assert of_encoder(given) == {name for name in GIVEN if name.startswith("encoder.")}
