"""The feature levels of a network: what the activation at the end of each stage is given."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from fedshift_clients.models.networks import SplitModel
from fedshift_clients.models.projection import Projection
from fedshift_clients.models.stages import pooled
from fedshift_core.errors import ConfigError


def feature_levels(encoder: nn.Module) -> tuple[nn.Module, ...] | None:
    """Return the activations whose inputs are the levels, in their order; None where an encoder does not tell.

    An encoder with a method ``feature_levels`` says itself. A row of layers has one up to each max-pooling, the last
    before it, and each that comes after the last pooling.
    """
    own = getattr(encoder, "feature_levels", None)
    if own is not None:
        own_levels: tuple[nn.Module, ...] | None = own()
        return own_levels
    if not isinstance(encoder, nn.Sequential):
        return None
    levels: list[nn.Module] = []
    waiting: list[nn.Module] = []
    for layer in encoder:
        if isinstance(layer, nn.ReLU):
            waiting.append(layer)
        elif isinstance(layer, Projection):
            waiting.append(layer.activation)
        elif isinstance(layer, nn.MaxPool2d):
            levels, waiting = [*levels, *waiting[-1:]], []
    return (*levels, *waiting) or None


def levels_of(model: SplitModel, who: str) -> tuple[nn.Module, ...]:
    """As :func:`feature_levels`, for a method that needs them, without those that are frozen.

    Args:
        model: Whose encoder it is.
        who: Which method with which network, for the message.

    Raises:
        ConfigError: If the encoder does not tell.
    """
    levels = feature_levels(model.encoder)
    if levels is None:
        raise ConfigError(
            f"{who}: the network does not tell its feature levels; allowed are a row of layers with nn.ReLU and "
            "max-pooling (cnn, cnn_bn, cnn2, cnn3), resnet10, resnet18, torchvision's ResNets, timm's networks "
            "in stages that end in activations, or an encoder with the method feature_levels"
        )
    frozen = {id(module) for path in model.still for module in model.get_submodule(path).modules()}
    return tuple(level for level in levels if id(level) not in frozen)


@contextmanager
def level_features(levels: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Gather the levels of the passes that are made inside; the last pass counts.

    Yields:
        A list, filled by a pass: of each level the features (B, D) in float32, maps pooled (:func:`pooled`).
    """
    features: list[Tensor] = []
    seen: dict[int, Tensor] = {}

    def look(place: int, module: nn.Module, given: tuple[Tensor, ...]) -> None:
        # Anew where the activation writes over what it is given; a layer that is used twice counts the last time.
        seen[place] = pooled(given[0], torch.float32) if given[0].ndim == 4 else given[0].clone().float()
        features[:] = [seen[at] for at in sorted(seen)]

    hooks = [level.register_forward_pre_hook(partial(look, place)) for place, level in enumerate(levels)]
    try:
        yield features
    finally:
        for hook in hooks:
            hook.remove()
