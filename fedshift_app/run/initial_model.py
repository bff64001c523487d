"""What the network of a run begins with: random values by the seed, or a file of weights. On the server alone."""

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from clients.models import weights
from clients.models.catalog import NETWORKS
from clients.models.libraries import LibraryEncoder
from clients.models.networks import SplitModel
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import setup
from fedshift_core.arrays import digest
from fedshift_core.errors import ConfigError
from fedshift_core.limits import shown

LARGE = 64  # pixels; above, a network for small images is slow


@dataclass(frozen=True)
class Beginning:
    """A run's model before round 1.

    Attributes:
        model: With its initial weights.
        taken: State-dict names whose values are out of a file.
        told: What is to be said of it, one line each.
    """

    model: SplitModel
    taken: frozenset[str] = frozenset()
    told: tuple[str, ...] = ()


def plain(config: RunConfig) -> Beginning:
    """Return what the seed alone gives: all that a run needs that goes on from a checkpoint, or is only looked at.

    Raises:
        ConfigError: If method, network and modules do not go together.
    """
    return Beginning(setup.initial_model(config))


def begin(config: RunConfig) -> tuple[RunConfig, Beginning]:
    """Return what a new run begins with, its weights read or fetched, and the configuration with their SHA-256.

    Raises:
        ConfigError: If method, network, modules and images do not go together, or the weights cannot be had or are
            not of the network.
    """
    beginning = plain(config)
    size = config.dataset.size or config.dataset.known().size
    if isinstance(beginning.model.encoder, LibraryEncoder):
        beginning.model.encoder.check(size)
    if not config.model.weights and not config.model.download:
        return config, beginning
    given, config = _fetched(config) if config.model.download else _read(config)
    source = Path(config.model.weights).name or f"the weights of {config.model.name}"
    fitted = weights.fitted(beginning.model, given, config.model.name, config.model.weights or source)
    beginning.model.load_state_dict(fitted.values, strict=False)
    sha256 = config.model.weights_sha256
    told = f"initial weights: {shown(source)} (SHA-256 {sha256[:12]}...), {len(fitted.values)} arrays taken"
    left = f"; left out: {'; '.join(fitted.left_out)}" if fitted.left_out else ""
    return config, replace(beginning, taken=frozenset(fitted.values), told=(told + left,))


def slow(config: RunConfig) -> str:
    """Return a warning where a network for small images meets large ones, empty where it does not."""
    size = config.dataset.size or config.dataset.known().size
    names = dict.fromkeys((config.model.name, *config.model.per_node))
    small = [name for name in names if NETWORKS[name].work]
    if not small or size <= LARGE:
        return ""
    name = max(small, key=lambda one: NETWORKS[one].work)
    return (
        f"model.name={name} is made for images of up to {LARGE}x{LARGE} pixels, found {size}x{size}: its first layers "
        f"keep their size, and an image takes {NETWORKS[name].work} times the work of torchvision:resnet18"
    )


def _read(config: RunConfig) -> tuple[dict[str, Tensor], RunConfig]:
    path = Path(config.model.weights)
    return weights.read(path, config.model.weights_sha256), config


def _fetched(config: RunConfig) -> tuple[dict[str, Tensor], RunConfig]:
    """Fetch a library's own weights; their SHA-256 is that of names, types, shapes and numbers."""
    from clients.models import timm_nets, torchvision_nets  # seconds to import, and few runs fetch

    library, _, name = config.model.name.partition(":")
    fetch = torchvision_nets.pretrained if library == "torchvision" else timm_nets.pretrained
    try:
        given = fetch(name)
    except ConfigError:
        raise
    except Exception as error:  # of a network, a proxy, a server, a full disk: each library has its own
        reason = " ".join(str(error).split())[:120]
        raise ConfigError(f"model.download: the weights of {config.model.name} cannot be fetched: {reason}") from None
    found, wanted = digest({key: tensor.numpy() for key, tensor in given.items()}), config.model.weights_sha256
    if wanted and found != wanted:
        raise ConfigError(
            f"model.download: the weights of {config.model.name} have the SHA-256 {found[:12]}..., the run began with "
            f"{wanted[:12]}...; set model.weights_sha256= for a run with these"
        )
    return given, config.model_copy(update={"model": config.model.model_copy(update={"weights_sha256": found})})
