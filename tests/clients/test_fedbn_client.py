"""FedBN on a node, which is the base client with ``bn = local``: all of BatchNorm stays."""

from support import C, fit, image_set, new_client, same, shared

from fedshift_clients.base import DomainClient
from fedshift_clients.modules.f2dc import F2DCModules
from fedshift_clients.training.settings import ImageConfig


def client(
    model: str = "cnn_bn", bn: str = "local", index: int = 0, modules: tuple[F2DCModules, ...] = ()
) -> DomainClient:
    return new_client(
        DomainClient, train_set=image_set(12, seed=index, classes=C), model=model, bn=bn, index=index, modules=modules,
        images=ImageConfig(crop_padding=2), epochs=1, batch_size=4,
    )  # fmt: skip


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
