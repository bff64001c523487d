"""FedBN on a node, which is the base client with ``bn = local``: all of BatchNorm stays."""

import numpy as np
import pytest
from support import C, fit, new_client, same, shared
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift_app.config import resolving
from fedshift_clients.base import DomainClient
from fedshift_clients.models.catalog import NETWORKS
from fedshift_clients.models.networks import batchnorm_names, build
from fedshift_clients.modules.f2dc import F2DCModules
from fedshift_clients.modules.params import F2DCParams
from fedshift_clients.training.settings import ImageConfig, ModelConfig
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import OURS
from fedshift_core.params import Params
from fedshift_datasets.base import ImageSet

OUR_NETWORKS = [network for name, network in NETWORKS.items() if NETWORKS.origin(name) == OURS]
ABLE = [network.name for network in OUR_NETWORKS if network.batchnorm]
UNABLE = [network.name for network in OUR_NETWORKS if not network.batchnorm]
N = 12


def image_set(seed: int = 0) -> ImageSet:
    """Images of a node, in a light of its own."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 100 + 50 * seed, size=(N, 32, 32, 3), dtype=np.uint8)
    return ImageSet(x, np.arange(N, dtype=np.int64) % C)


def client(
    model: str = "cnn_bn", bn: str = "local", index: int = 0, modules: tuple[F2DCModules, ...] = ()
) -> DomainClient:
    return new_client(
        DomainClient, train_set=image_set(index), model=model, bn=bn, index=index, modules=modules,
        images=ImageConfig(crop_padding=2), epochs=1, batch_size=4,
    )  # fmt: skip


@pytest.mark.parametrize("modules", [(), (F2DCModules(F2DCParams()),)])
@pytest.mark.parametrize("model", ABLE)
def test_no_batchnorm_travels(model: str, modules: tuple[F2DCModules, ...]) -> None:
    """Nor does that of modules, which themselves travel."""
    made = client(model, modules=modules)
    inside = {name for name, module in made.model.named_modules() if isinstance(module, _BatchNorm)}
    owners = {name.rpartition(".")[0] for name in made.model.state_dict()}
    assert {name.rpartition(".")[0] for name in made.shared_names} == owners - inside
    assert inside
    assert any(name.startswith("decoupling.") for name in inside) is bool(modules)
    assert DomainClient.personal(made.model, made.setup.model, Params())
    assert len(made.model.state_dict()) - len(made.shared_names) == 5 * len(inside)


def test_batchnorm_of_a_shortcut_stays_though_its_name_does_not_say_so() -> None:
    names = DomainClient.private(build("resnet10", C, 0), ModelConfig(name="resnet10", bn="local"), Params())
    assert "encoder.stages.1.0.shortcut.1.running_mean" in names
    assert "encoder.stem.1.weight" in names


def test_training_is_fedavgs_from_the_nodes_own_batchnorm_bit_for_bit() -> None:
    """Only who is averaged how differs, which is the server's."""
    mine, plain = client(), client(bn="average")
    start = shared(plain)
    for server_round in (1, 2):
        wanted, expected = fit(plain, server_round, start)
        given = [array for name, array in zip(plain.shared_names, start, strict=True) if name in mine.shared_names]
        arrays, metrics = fit(mine, server_round, given)
        assert same(
            arrays, [w for name, w in zip(plain.shared_names, wanted, strict=True) if name in mine.shared_names]
        )
        assert metrics == expected
        start = wanted


def test_batchnorm_goes_on_where_the_node_left_it() -> None:
    first, second = client(index=0), client(index=1)
    arrays = shared(first)
    for made in (first, second):
        fit(made, 1, arrays)
    name = "model/encoder.1.running_mean"
    assert set(first.memory) == {f"model/{inner}" for inner in batchnorm_names(first.model)}
    assert not np.array_equal(first.memory[name], second.memory[name])
    anew = client(index=0)
    anew.memory = {name: array.copy() for name, array in first.memory.items()}
    fit(anew, 2, arrays)
    fit(first, 2, arrays)
    assert int(anew.memory["model/encoder.1.num_batches_tracked"]) == 2 * 3
    assert np.array_equal(anew.memory[name], first.memory[name])


# --- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("model", UNABLE)
def test_a_network_without_batchnorm_is_refused(model: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.name={model}; there are cnn_bn, resnet10, resnet18"):
        resolving.resolve({"method": "fedbn", "set": f"model.name={model}"})


def test_the_default_experiment_takes_the_cnn_with_batchnorm() -> None:
    resolved = resolving.resolve({"method": "fedbn"})
    assert (resolved.model.name, resolved.model.bn) == ("cnn_bn", "local")
    assert resolving.resolve({}).model.name == "cnn"
