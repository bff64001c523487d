"""FedBN on a node, which is the base client with ``bn = local``: all of BatchNorm stays."""

import pytest
from support import C, fit, image_set, new_client, same, shared
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift_clients.base import DomainClient
from fedshift_clients.models.catalog import NETWORKS
from fedshift_clients.modules.f2dc import F2DCModules
from fedshift_clients.modules.params import F2DCParams
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.extensions import OURS
from fedshift_core.params import Params

OUR_NETWORKS = [network for name, network in NETWORKS.items() if NETWORKS.origin(name) == OURS]
ABLE = [network.name for network in OUR_NETWORKS if network.batchnorm]


def client(
    model: str = "cnn_bn", bn: str = "local", index: int = 0, modules: tuple[F2DCModules, ...] = ()
) -> DomainClient:
    return new_client(
        DomainClient, train_set=image_set(12, seed=index, classes=C), model=model, bn=bn, index=index, modules=modules,
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
