"""``torchvision:NAME``: classification networks of torchvision whose last layer is linear."""

import functools
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision import models  # type: ignore[import-untyped]

from fedshift_clients.models.libraries import Library, LibraryEncoder, blank, passed, refusing, without_weights
from fedshift_clients.models.stages import Stages
from fedshift_core.errors import ConfigError

PREFIX = "torchvision:"
HEADS = ("fc", "classifier", "heads", "head")  # where torchvision keeps its heads
AUXILIARY = ("AuxLogits.", "aux1.", "aux2.")
COMMON_SIZE = 224  # pixels of the images that tell where maps shrink


def pretrained(name: str) -> dict[str, Tensor]:
    """Fetch torchvision's default weights of a network, by its own names.

    Raises:
        ConfigError: If it has none.
        OSError: If they cannot be fetched.
    """
    try:
        weights = models.get_model_weights(name).DEFAULT
    except (AttributeError, ValueError):
        raise ConfigError(f"model.download: torchvision has no weights of {name}") from None
    return dict(weights.get_state_dict(progress=False, check_hash=True))


def fetched() -> list[str]:
    """Return the networks whose default weights are in torch's cache."""
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    names = models.list_models(module=models)
    weights = {name: models.get_model_weights(name).DEFAULT for name in names}
    return [PREFIX + name for name in names if (folder / weights[name].url.rpartition("/")[2]).is_file()]


def normalisation(name: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return mean and std with which torchvision's default weights were trained; None if it does not say."""
    transforms = models.get_model_weights(name).DEFAULT.transforms()
    mean, std = getattr(transforms, "mean", None), getattr(transforms, "std", None)
    return (tuple(mean), tuple(std)) if mean and std else None


class TorchvisionEncoder(LibraryEncoder):
    """A network of torchvision with nothing in the place of its last layer."""

    def outline(self, size: int) -> nn.Module:
        """Return the same network for images of a size, without weights where that can be."""
        return _outline(self.own_name, size)

    def feature_stages(self) -> Stages | None:
        """Return its stages: one up to each place where the map shrinks; the first has the stem."""
        row = _row(self.body)
        if row is None:
            return None
        ends, widths = _ends(self.own_name)
        blocks = tuple(nn.Sequential(*row[start:end]) for start, end in pairwise((0, *ends)))
        return Stages(blocks, widths, self.rest)

    def feature_levels(self) -> tuple[nn.Module, ...] | None:
        """Return a ResNet's activations at the end of the stem and of each stage. It is None for any other network."""
        body: Any = self.body
        if not isinstance(body, models.ResNet):
            return None
        return body.relu, *(stage[-1].relu for stage in (body.layer1, body.layer2, body.layer3, body.layer4))

    def rest(self, h: Tensor) -> Tensor:
        """Map the last map (B, C, H, W) to features (B, D), as the network itself does."""
        body: Any = self.body
        last: nn.Module = getattr(body, self.head.partition(".")[0])
        if isinstance(body, models.ConvNeXt):
            return cast(Tensor, last(body.avgpool(h)))
        if isinstance(body, models.ShuffleNetV2 | models.MNASNet):
            pooled = h.mean([2, 3])
        elif isinstance(body, models.DenseNet | models.MobileNetV2):
            pooled = F.adaptive_avg_pool2d(F.relu(h) if isinstance(body, models.DenseNet) else h, (1, 1))
        else:
            pooled = body.avgpool(h)
        return cast(Tensor, last(torch.flatten(pooled, 1)))


_IN_A_ROW = (
    models.AlexNet,
    models.ConvNeXt,
    models.DenseNet,
    models.EfficientNet,
    models.MobileNetV2,
    models.MobileNetV3,
    models.VGG,
)


def _row(body: Any) -> Sequence[nn.Module] | None:
    """Return a network's steps up to its last map. None if they are not a row of maps."""
    if isinstance(body, models.ResNet):
        stem = nn.Sequential(body.conv1, body.bn1, body.relu, body.maxpool)
        return [stem, body.layer1, body.layer2, body.layer3, body.layer4]
    if isinstance(body, models.ShuffleNetV2):
        return [body.conv1, body.maxpool, body.stage2, body.stage3, body.stage4, body.conv5]
    if isinstance(body, models.RegNet):
        return [body.stem, *body.trunk_output]
    if isinstance(body, models.MNASNet):
        return list(body.layers)
    if isinstance(body, _IN_A_ROW):
        return list(body.features)
    return None


@functools.cache
def _ends(name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return where the stages of a row end and the width of their maps, tried on a common image."""
    outline = _outline(name, COMMON_SIZE)
    row = _row(outline)
    assert row is not None
    shapes: list[torch.Size] = []
    learns = [any(True for _ in module.parameters()) for module in row]
    with torch.no_grad():
        h = blank(outline, COMMON_SIZE)
        for module in row:
            h = module(h)
            shapes.append(h.shape)
    shrinks = [place for place in range(1, len(row)) if shapes[place][-1] < shapes[place - 1][-1]]
    # A stage that only pools belongs to the one before it.
    inner = [start for start, stop in pairwise([*shrinks, len(row)]) if any(learns[start:stop])]
    ends = (*inner, len(row))
    return ends, tuple(shapes[end - 1][1] for end in ends)


@functools.lru_cache(maxsize=8)
def _outline(name: str, size: int) -> nn.Module:
    """Return a network with nothing in the place of its head, without weights where that can be.

    Raises:
        ConfigError: If it takes no images of that size.
    """
    with refusing(PREFIX + name, size):
        body = without_weights(lambda: _made(name, size))
        if size != COMMON_SIZE:
            passed(body, size)
    body.set_submodule(_head(name, body)[0], nn.Identity())
    return body


def arguments(name: str, size: int) -> dict[str, Any]:
    """Return the arguments of ``torchvision.models.get_model`` for images of a size, besides name and classes."""
    if name.startswith("vit_"):
        return {"image_size": size}
    if name.startswith("maxvit"):
        return {"input_size": (size, size)}
    if name in ("googlenet", "inception_v3"):
        # transform_input: what their weights were trained with, on images normalised as ImageNet's.
        return {"aux_logits": False, "init_weights": False, "transform_input": True}
    return {}


def _made(name: str, size: int) -> nn.Module:
    made: nn.Module = models.get_model(name, weights=None, **arguments(name, size))
    return made


def _head(name: str, body: nn.Module) -> tuple[str, nn.Linear]:
    """Return the last linear layer and its name.

    Raises:
        ConfigError: If the network does not end in one.
    """
    layers = [
        (path, layer)
        for path, layer in body.named_modules()
        if isinstance(layer, nn.Linear) and path.partition(".")[0] in HEADS
    ]
    if not layers:
        raise ConfigError(
            f"the head of {PREFIX}{name} is no linear layer, so the network cannot be divided into encoder and "
            "classifier"
        )
    return layers[-1]


def _divided(name: str, body: nn.Module) -> tuple[TorchvisionEncoder, int]:
    head, linear = _head(name, body)
    body.set_submodule(head, nn.Identity())
    return TorchvisionEncoder(body, PREFIX + name, head, AUXILIARY), linear.in_features


find = functools.cache(
    Library("torchvision", lambda: models.list_models(module=models), lambda _: COMMON_SIZE, _made, _divided).find
)
