"""``model.freeze``: what is frozen takes no gradient, no statistics, and stays out of what travels each round."""

import pytest
import torch
from refusals import refused
from support import changed, drawn, fedavg, fit, image_set, shared, weights

from fedshift_clients.models import networks
from fedshift_clients.models.freezing import freeze
from fedshift_core.errors import ConfigError

NETWORK = "torchvision:shufflenet_v2_x0_5"


def frozen(what: str, name: str = NETWORK) -> networks.SplitModel:
    model = networks.build(name, 4, 0)
    freeze(model, what, name)
    return model


def stepped(model: networks.SplitModel) -> set[str]:
    """Return the state-dict names that a training step changes."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    networks.set_training(model, freeze_batchnorm=False)
    model(drawn(0, 4, 3, 32, 32))[1].square().sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * (parameter.grad + 1)
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


PARTS = [
    ("encoder", NETWORK), ("norm", NETWORK), ("stages:2", NETWORK), ("stages:2", "resnet10"), ("stages:1", "cnn"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "name"), PARTS)
def test_a_training_step_moves_all_but_what_is_frozen(what: str, name: str) -> None:
    """Statistics of BatchNorm included; nothing that is free stays behind."""
    model = frozen(what, name)
    assert model.frozen
    assert stepped(model) == model.state_dict().keys() - model.frozen


def test_dropout_of_a_frozen_encoder_is_off() -> None:
    model = frozen("encoder", "torchvision:mobilenet_v3_small")
    model.train()
    assert model.training
    assert not any(module.training for module in model.encoder.modules())


@pytest.mark.parametrize(
    ("what", "name", "allowed"), [("norm", "cnn", "normalisation"), ("stages:9", NETWORK, "1 to 4")]
)
def test_parts_that_a_network_lacks_are_refused(what: str, name: str, allowed: str) -> None:
    with refused(ConfigError, f"model.freeze={what}", name, allowed):
        frozen(what, name)


def test_a_client_sends_what_is_free_alone() -> None:
    client = fedavg(network=frozen("stages:1", "cnn"), train_set=image_set(8))
    assert client.shared_frozen == client.model.frozen
    before = weights(client)
    fit(client)
    assert changed(before, weights(client)) == set(client.shared_names) == before.keys() - client.shared_frozen
    assert len(shared(client)) == len(client.shared_names)
