"""``unet:NAME``: networks of segmentation, whose encoder gives maps and whose decoder makes masks of them.

U-Net: Ronneberger et al., MICCAI 2015, https://arxiv.org/abs/1505.04597. Features are the encoder's maps, flattened and
joined, as all that looks at features takes one array (B, P). The decoder ends in a linear layer at each pixel, a
convolution of 1x1.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift_clients.models.catalog import SMALL_UNET, UNET, Network, unknown
from fedshift_clients.models.networks import DeepHead, SplitModel
from fedshift_clients.models.stages import Stages, stages_of
from fedshift_core.errors import ConfigError

PREFIX = f"{UNET}:"
WIDTHS = (8, 24, 64)  # of the maps of unet:small, each half as high as the one before
Shape = tuple[int, ...]


class MaskHead(DeepHead):
    """A decoder as classifier: a linear layer at each pixel of the last map.

    Attributes:
        shapes: (C, h, w) of the maps that features are joined of.
        body: Maps of these shapes to the last map (B, D, H, W).
    """

    def __init__(self, body: nn.Module, shapes: Sequence[Shape], width: int, num_classes: int) -> None:
        super().__init__(width, num_classes)
        self.shapes = tuple(shapes)
        self.body = body

    def before(self, features: Tensor) -> Tensor:
        """Map features (B, P) to what the linear layer is given of each pixel (B, H, W, D)."""
        parts = torch.split(features, [math.prod(shape) for shape in self.shapes], dim=1)
        maps = [part.reshape(-1, *shape) for part, shape in zip(parts, self.shapes, strict=True)]
        last: Tensor = self.body(maps)
        return last.movedim(1, -1)

    def forward(self, features: Tensor) -> Tensor:
        """Map features (B, P) to logits (B, C, H, W)."""
        return super().forward(features).movedim(-1, 1)


def joined(maps: Sequence[Tensor]) -> Tensor:
    """Return maps (B, C, h, w) flattened and joined (B, P)."""
    return torch.cat([each.flatten(1) for each in maps], dim=1)


def mask_model(encoder: nn.Module, body: nn.Module, shapes: Sequence[Shape], width: int, classes: int) -> SplitModel:
    """Return the model of an encoder whose features are maps of these shapes, and a decoder (:class:`MaskHead`)."""
    model = SplitModel(encoder, width, classes)
    model.feature_dim = sum(map(math.prod, shapes))
    model.classifier = MaskHead(body, shapes, width, classes)
    return model


def no_rest(h: Tensor) -> Tensor:
    """Refuse to make features of the last map alone.

    Raises:
        ConfigError: In any case.
    """
    raise ConfigError(
        f"networks {PREFIX}NAME make their features of the maps of all stages; something in this run goes on from the "
        "last one alone and needs another network"
    )


class SmallEncoder(nn.Module):
    """Three stages of two 3x3 convolutions; all but the first halve the map."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList()
        width_in = 3
        for width in WIDTHS:
            halving = [nn.MaxPool2d(2)] if self.stages else []
            self.stages.append(nn.Sequential(*halving, *_convolved(width_in, width), *_convolved(width, width)))
            width_in = width

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, 3, H, W) to the maps of all stages (B, P)."""
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return joined(maps)

    def feature_stages(self) -> Stages:
        """Return its three stages."""
        return stages_of(list(self.stages), no_rest)

    def feature_levels(self) -> tuple[nn.Module, ...]:
        """Return the activation at the end of each stage."""
        return tuple(cast(nn.Sequential, stage)[-1] for stage in self.stages)


class SmallDecoder(nn.Module):
    """Doubles the last map again and again, and joins it with that of the stage of its size."""

    def __init__(self) -> None:
        super().__init__()
        pairs = zip(WIDTHS[:0:-1], WIDTHS[-2::-1], strict=True)
        self.steps = nn.ModuleList(nn.Sequential(*_convolved(deep + skip, skip)) for deep, skip in pairs)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Map the maps of all stages to one (B, 8, H, W)."""
        h, *skips = reversed(maps)
        for step, skip in zip(self.steps, skips, strict=True):
            h = step(torch.cat((F.interpolate(h, scale_factor=2.0), skip), dim=1))
        return h


def _convolved(width_in: int, width: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(width_in, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()


def small(num_classes: int, size: int) -> SplitModel:
    """Build the small U-Net.

    Raises:
        ConfigError: If maps of that size cannot be halved twice.
    """
    halvings = len(WIDTHS) - 1
    if size % 2**halvings:
        raise ConfigError(
            f"model.name={PREFIX}{SMALL_UNET} needs a dataset.size that {2**halvings} divides, found {size}"
        )
    shapes = [(width, size >> place, size >> place) for place, width in enumerate(WIDTHS)]
    return mask_model(SmallEncoder(), SmallDecoder(), shapes, WIDTHS[0], num_classes)


def find(name: str) -> Network:
    """Return a network of segmentation.

    Raises:
        ConfigError: If there is none of that name.
    """
    if name != SMALL_UNET:
        raise unknown(name, PREFIX, [])
    return Network(PREFIX + name, "small U-Net, three stages, 80,000 parameters", small)
