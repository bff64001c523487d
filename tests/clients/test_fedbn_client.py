"""FedBN on a node: all of BatchNorm stays, and a network without it is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.modules.batchnorm import _BatchNorm

from clients.base import ClientSetup, DomainClient
from clients.fedbn import ABLE, FedBNClient
from clients.models.networks import MODELS, batchnorm_names, build
from clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from datasets.base import ImageSet
from fedshift_app.config import resolving
from fedshift_wire.errors import ConfigError
from fedshift_wire.names import SERVER_ROUND, Params

C, N = 4, 12
TRAIN = TrainConfig(epochs=1, batch_size=4, lr=0.05, precision="float32")


def image_set(seed: int = 0) -> ImageSet:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 100 + 50 * seed, size=(N, 32, 32, 3), dtype=np.uint8)
    return ImageSet(x, np.arange(N, dtype=np.int64) % C)


def client(kind: Any = FedBNClient, model: str = "cnn_bn", bn: str = "average", index: int = 0) -> DomainClient:
    setup = ClientSetup(
        seed=11, index=index, device=torch.device("cpu"), model=ModelConfig.model_validate({"name": model, "bn": bn}),
        train=TRAIN, images=ImageConfig(crop_padding=2),
    )  # fmt: skip
    images = image_set(index)
    made: DomainClient = kind(build(model, C, 0), setup, Params(), images, lambda domain: images)
    return made


def shared(of: DomainClient) -> list[NDArray[Any]]:
    return [of.model.state_dict()[name].numpy().copy() for name in of.shared_names]


@pytest.mark.parametrize("bn", ["average", "local"])
@pytest.mark.parametrize("model", ABLE)
def test_no_batchnorm_travels_whatever_the_model_section_says(model: str, bn: str) -> None:
    made = client(model=model, bn=bn)
    inside = {name for name, module in made.model.named_modules() if isinstance(module, _BatchNorm)}
    owners = {name.rpartition(".")[0] for name in made.model.state_dict()}
    assert {name.rpartition(".")[0] for name in made.shared_names} == owners - inside
    assert inside
    assert FedBNClient.personal(made.model, made.setup.model, Params())
    assert len(made.model.state_dict()) - len(made.shared_names) == 5 * len(inside)


def test_batchnorm_of_a_shortcut_stays_though_its_name_does_not_say_so() -> None:
    names = FedBNClient.private(build("resnet10", C, 0), ModelConfig(name="resnet10"), Params())
    assert "encoder.stages.1.0.shortcut.1.running_mean" in names
    assert "encoder.stem.1.weight" in names


def test_training_is_fedavgs_with_local_batchnorm_bit_for_bit() -> None:
    """Only who is averaged how differs, which is the server's."""
    mine, plain = client(), client(DomainClient, bn="local")
    arrays = shared(mine)
    for server_round in (1, 2):
        wanted, _, expected = plain.fit(arrays, {SERVER_ROUND: server_round})
        arrays, _, metrics = mine.fit(arrays, {SERVER_ROUND: server_round})
        assert all(np.array_equal(a, b) for a, b in zip(arrays, wanted, strict=True))
        assert metrics == expected


def test_batchnorm_goes_on_where_the_node_left_it() -> None:
    first, second = client(index=0), client(index=1)
    arrays = shared(first)
    for made in (first, second):
        made.fit(arrays, {SERVER_ROUND: 1})
    name = "model/encoder.1.running_mean"
    assert set(first.memory) == {f"model/{inner}" for inner in batchnorm_names(first.model)}
    assert not np.array_equal(first.memory[name], second.memory[name])
    anew = client(index=0)
    anew.memory = {name: array.copy() for name, array in first.memory.items()}
    anew.fit(arrays, {SERVER_ROUND: 2})
    first.fit(arrays, {SERVER_ROUND: 2})
    assert int(anew.memory["model/encoder.1.num_batches_tracked"]) == 2 * 3
    assert np.array_equal(anew.memory[name], first.memory[name])


# --- what is refused -------------------------------------------------------------------------------


def test_able_are_the_networks_with_batchnorm() -> None:
    assert set(ABLE) == {name for name in MODELS if batchnorm_names(build(name, C, 0))}


@pytest.mark.parametrize("model", sorted(set(MODELS) - set(ABLE)))
def test_a_network_without_batchnorm_is_refused(model: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.name={model}; there are cnn_bn, resnet10, resnet18"):
        FedBNClient.check_run(Params(), ModelConfig.model_validate({"name": model}), TRAIN, ImageConfig())


def test_frozen_batchnorm_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.bn=freeze"):
        FedBNClient.check_run(Params(), ModelConfig(name="resnet10", bn="freeze"), TRAIN, ImageConfig())


def test_the_default_experiment_takes_the_cnn_with_batchnorm() -> None:
    resolved = resolving.resolve({"method": "fedbn"})
    assert (resolved.model.name, resolved.model.bn) == ("cnn_bn", "local")
    assert resolving.resolve({}).model.name == "cnn"
    with pytest.raises(ConfigError, match=r"model\.name=cnn;"):
        resolving.resolve({"method": "fedbn", "set": "model.name=cnn"})
