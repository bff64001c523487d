"""All networks by name. No torch: the command line reads it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedshift_wire.extensions import Registry


@dataclass(frozen=True)
class Network:
    """A network that a configuration can ask for.

    Attributes:
        name: The name by which a configuration asks for it.
        title: One line for lists.
        build: Given the number of classes C and the size of the images in pixels, returns a
            ``clients.models.networks.SplitModel``; named as ``module:function``, so that a list imports no torch.
        size: The only size of images that it takes, in pixels; None for any.
        batchnorm: It has BatchNorm.
    """

    name: str
    title: str
    build: str | Callable[[int, int], Any]
    size: int | None = None
    batchnorm: bool = True


_CNN, _RESNET = "clients.models.cnn", "clients.models.resnet"

NETWORKS: Registry[Network] = Registry(
    "model", "fedshift.models", lambda: Network,
    {
        network.name: network
        for network in (
            Network("cnn", "two-layer CNN of FedICON, 64 features, no BatchNorm", f"{_CNN}:cnn", 32, batchnorm=False),
            Network("cnn_bn", "the same with BatchNorm", f"{_CNN}:cnn_bn", 32),
            Network("cnn2", "two convolutions, of FedSeProto, 512 features", f"{_CNN}:cnn2", 32, batchnorm=False),
            Network("cnn3", "three convolutions, of FedSeProto, 512 features", f"{_CNN}:cnn3", 32, batchnorm=False),
            Network("resnet10", "ResNet-10, small-image form, 512 features", f"{_RESNET}:resnet10"),
            Network("resnet18", "ResNet-18, small-image form, 512 features", f"{_RESNET}:resnet18"),
        )
    },
)  # fmt: skip
