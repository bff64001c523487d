"""All networks by name. No torch: the command line reads it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedshift_core.errors import ConfigError
from fedshift_core.extensions import OURS, Registry
from fedshift_core.limits import as_found
from fedshift_core.registry import imported
from fedshift_core.spelling import meant


@dataclass(frozen=True)
class Network:
    """A network that a configuration can ask for.

    Attributes:
        name: The name by which a configuration asks for it.
        title: One line for lists.
        build: Given the number of classes C and the size of the images in pixels, returns a
            ``fedshift_clients.models.networks.SplitModel``; named as ``module:function``, so that a list imports no
            torch.
        size: The only size of images that it takes, in pixels; None for any.
        batchnorm: It has BatchNorm.
    """

    name: str
    title: str
    build: str | Callable[[int, int], Any]
    size: int | None = None
    batchnorm: bool = True


@dataclass(frozen=True)
class Family:
    """The networks of a library, asked for as ``PREFIX:NAME``.

    Attributes:
        prefix: What comes before the colon.
        title: One line for lists.
        find: Given the name after the colon, returns a :class:`Network`; named as ``module:function``, which imports
            the library.
        library: The package of its networks; empty: they are ours.
    """

    prefix: str
    title: str
    find: str
    library: str = ""


GIVEN = "features"  # the family that stands for features of a file; it has no library
UNET, SMALL_UNET = "unet", "unet:small"
FAMILIES: dict[str, Family] = {
    family.prefix: family
    for family in (
        Family(
            GIVEN,
            "features:D, features (B, D) of dataset.features in place of a network's",
            "fedshift_clients.models.given:find",
        ),
        Family(
            "torchvision",
            "torchvision:NAME, any classification network of torchvision that ends in a linear layer: "
            "torchvision:resnet18, torchvision:mobilenet_v3_small, torchvision:vit_b_16, ...",
            "fedshift_clients.models.torchvision_nets:find",
            "torchvision",
        ),
        Family(
            "timm",
            "timm:NAME, any network of timm (pip install 'fedshift[timm]'): timm:resnet18, timm:convnext_atto, ...",
            "fedshift_clients.models.timm_nets:find",
            "timm",
        ),
        Family(
            UNET,
            "unet:small and unet:ENCODER, U-Nets for segmentation, with any encoder of timm "
            "(pip install 'fedshift[segmentation]'): unet:resnet18, unet:efficientnet_lite0, ...",
            "fedshift_clients.models.unet:find",
            "segmentation_models_pytorch",
        ),
    )
}


class Networks(Registry[Network]):
    """Networks by name, those of whole libraries too; lists have the others only."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (family_of(name) is not None or super().__contains__(name))

    def __getitem__(self, name: str) -> Network:
        """Return a network by name.

        Raises:
            ConfigError: If there is none, or its library cannot be used.
        """
        family = family_of(name)
        if family is not None:
            if name not in self._found:
                self._found[name] = imported(family.find)(name.partition(":")[2])
            return self._found[name]
        if not super().__contains__(name):
            known = ", ".join((*self, *(f"{prefix}:NAME" for prefix in FAMILIES)))
            raise ConfigError(f"unknown {self.kind} {as_found(name)}; there are {known}{meant(name, self)}")
        return super().__getitem__(name)

    def origin(self, name: str) -> str:
        """Return where a network comes from: ``fedshift``, a package or library with its version, or a file."""
        family = family_of(name)
        if family is None:
            return super().origin(name)
        library = library_of(name)
        return f"{library} {imported(f'{library}:__version__')}" if library else OURS


def family_of(name: str) -> Family | None:
    """Return the library that a name points to; None for a network of ours or of a plugin."""
    prefix, colon, _ = name.partition(":")
    return FAMILIES.get(prefix) if colon else None


def library_of(name: str) -> str:
    """Return the package that makes a network; empty for one of ours or of a plugin."""
    family = family_of(name)
    return "" if family is None or name == SMALL_UNET else family.library


def is_given(name: str) -> bool:
    """Return whether a network stands for features of a file."""
    return name.startswith(f"{GIVEN}:")


def has_decoder(name: str) -> bool:
    """Return whether a network gives a class of each pixel."""
    return name.startswith(f"{UNET}:")


def unknown(name: str, library: str, near: list[str]) -> ConfigError:
    """Return the error of a name that a library does not have."""
    near_names = f"; near it are {', '.join(near)}" if near else ""
    return ConfigError(f"{library} has no network {as_found(name)}{near_names}")


_CNN, _RESNET = "fedshift_clients.models.cnn", "fedshift_clients.models.resnet"

NETWORKS = Networks(
    "model",
    "fedshift.models",
    lambda: Network,
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
)
