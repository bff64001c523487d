"""Builds the initial model of a run on the server: random values by the seed, or a file of weights."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedshift_app.config.sections import RunConfig
from fedshift_app.node import setup
from fedshift_clients.models import packages, weights
from fedshift_clients.models.libraries import LibraryEncoder
from fedshift_clients.models.networks import SplitModel
from fedshift_core.arrays import Arrays, digest
from fedshift_core.errors import ConfigError
from fedshift_core.limits import largest, shown
from fedshift_core.plural import plural


@dataclass(frozen=True)
class InitialModel:
    """A run's model before round 1.

    Attributes:
        model: The model with its initial weights.
        from_file: State-dict names whose values come from a file.
        knowledge: What a run without rounds classifies by in addition to the weights, from the same file.
        message: Line to show about it.
        warning: Line to warn with.
    """

    model: SplitModel
    from_file: frozenset[str] = frozenset()
    knowledge: Arrays = field(default_factory=dict)
    message: str = ""
    warning: str = ""


def plain(config: RunConfig) -> InitialModel:
    """Return the initial model by the seed alone. That suffices for runs that continue or are only inspected.

    Raises:
        ConfigError: If method, network and modules do not go together.
    """
    return InitialModel(setup.initial_model(config))


def begin(config: RunConfig) -> tuple[RunConfig, InitialModel]:
    """Return the configuration with the SHA-256 of the weights, and the initial model with weights read or fetched.

    Raises:
        ConfigError: If method, network, modules and images do not go together, the weights cannot be obtained, or
            they do not fit the network.
    """
    initial = plain(config)
    size = config.dataset.pixels
    if isinstance(initial.model.encoder, LibraryEncoder):
        initial.model.encoder.check(size)
    if not config.model.weights and not config.model.download:
        return config, initial
    if config.model.download:
        tensors, config = _fetched(config)
    else:
        tensors = weights.read(packages.located(config.model.weights), config.model.weights_sha256)
    knowledge = {} if config.rounds else _taken_out(tensors, config)
    source = Path(config.model.weights).name or f"the weights of {config.model.name}"
    packaged = packages.of(config.model.weights)
    if packaged is not None and packaged.in_order:
        tensors = weights.in_order(initial.model, tensors, size, config.model.weights)
    fitted = weights.fitted(initial.model, tensors, config.model.name, config.model.weights or source)
    initial.model.load_state_dict(fitted.values, strict=False)
    sha256 = config.model.weights_sha256
    message = (
        f"initial weights: {shown(source)} (SHA-256 {sha256[:12]}...), {plural(len(fitted.values), 'array')} taken"
    )
    left_out = f"; left out: {'; '.join(fitted.left_out)}" if fitted.left_out else ""
    return config, replace(
        initial,
        from_file=frozenset(fitted.values),
        knowledge=knowledge,
        message=message + left_out,
        warning=_normalisation(config, source, packaged),
    )


def _taken_out(tensors: dict[str, Tensor], config: RunConfig) -> Arrays:
    """Take out of a saved model what it classifies by in addition to weights (``weights.KNOWLEDGE``), and return it.

    Raises:
        ConfigError: If a number is not finite.
    """
    names = [name for name in tensors if name.startswith(weights.KNOWLEDGE)]
    arrays = {name.removeprefix(weights.KNOWLEDGE): tensors.pop(name).numpy() for name in names}
    for name, array in arrays.items():
        if not np.isfinite(largest(array)):
            file = shown(config.model.weights)
            raise ConfigError(f"model.weights: {file}: {shown(name)} holds numbers that are not finite")
    return arrays


def _normalisation(config: RunConfig, source: str, packaged: packages.PackagedWeights | None) -> str:
    """Return a warning if images are not normalised as the weights were trained; nothing is known of a plain file."""
    images = config.images
    if packaged is not None:
        own: tuple[tuple[float, ...], tuple[float, ...]] | None = (packaged.mean, packaged.std)
    else:
        name = config.model.name
        own = _library(name).normalisation(name.partition(":")[2]) if config.model.download else None
    if own is None or (images.mean, images.std) == own:
        return ""
    mean, std = map(list, own)
    return (
        f"images.mean={list(images.mean)} and images.std={list(images.std)}, but {shown(source)} was trained with "
        f"images.mean={mean} images.std={std}"
    )


def _library(name: str) -> Any:
    """Return the module of the library that a network is of."""
    from fedshift_clients.models import timm_nets, torchvision_nets  # seconds to import, and few runs fetch

    return torchvision_nets if name.startswith(torchvision_nets.PREFIX) else timm_nets


def _fetched(config: RunConfig) -> tuple[dict[str, Tensor], RunConfig]:
    """Fetch a library's own weights; the SHA-256 covers their names, types, shapes and numbers."""
    try:
        tensors: dict[str, Tensor] = _library(config.model.name).pretrained(config.model.name.partition(":")[2])
    except ConfigError:
        raise
    except Exception as error:  # network, proxy, server, full disk: each library raises its own types
        reason = " ".join(str(error).split())[:120]
        raise ConfigError(f"model.download: the weights of {config.model.name} cannot be fetched: {reason}") from None
    sha256, expected = digest({key: tensor.numpy() for key, tensor in tensors.items()}), config.model.weights_sha256
    if expected and sha256 != expected:
        raise ConfigError(
            f"model.download: the weights of {config.model.name} have the SHA-256 {sha256[:12]}..., the run began with "
            f"{expected[:12]}...; set model.weights_sha256= to begin a run with these"
        )
    return tensors, config.with_values("model", weights_sha256=sha256)
