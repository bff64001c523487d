"""``unet:NAME``: networks of segmentation, whose encoder gives maps and whose decoder makes masks of them.

U-Net: Ronneberger et al., MICCAI 2015, https://arxiv.org/abs/1505.04597. Features are the encoder's maps, flattened and
joined, as all that looks at features takes one array (B, P). The decoder ends in a linear layer at each pixel, a
convolution of 1x1.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift_clients.models import networks, timm_nets
from fedshift_clients.models.catalog import SMALL_UNET, UNET, Network
from fedshift_clients.models.libraries import LibraryEncoder, passed, refusing, without_weights
from fedshift_clients.models.networks import DeepHead, SplitModel
from fedshift_clients.models.stages import Stages, stages_of
from fedshift_clients.models.timm_stages import Cut, cut_at_maps, levels_at, modules
from fedshift_clients.models.weights import in_body
from fedshift_core.errors import ConfigError

PREFIX = f"{UNET}:"
WIDTHS = (8, 24, 64)  # of the maps of unet:small, each half as high as the one before
Shape = tuple[int, ...]


class DecoderHead(DeepHead):
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
        maps = [torch.unflatten(part, 1, shape) for part, shape in zip(parts, self.shapes, strict=True)]
        last: Tensor = self.body(maps)
        return last.movedim(1, -1)

    def forward(self, features: Tensor) -> Tensor:
        """Map features (B, P) to logits (B, C, H, W)."""
        return super().forward(features).movedim(-1, 1)


def joined(maps: Sequence[Tensor]) -> Tensor:
    """Return maps (B, C, h, w) flattened and joined (B, P)."""
    return torch.cat([each.flatten(1) for each in maps], dim=1)


def decoder_model(encoder: nn.Module, body: nn.Module, shapes: Sequence[Shape], width: int, classes: int) -> SplitModel:
    """Return the model of an encoder whose features are maps of these shapes, and a decoder (:class:`DecoderHead`)."""
    model = SplitModel(encoder, width, classes)
    model.feature_dim = sum(map(math.prod, shapes))
    model.classifier = DecoderHead(body, shapes, width, classes)
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
        raise ConfigError(f"model.name={SMALL_UNET} needs a dataset.size that {2**halvings} divides, found {size}")
    shapes = [(width, size >> place, size >> place) for place, width in enumerate(WIDTHS)]
    return decoder_model(SmallEncoder(), SmallDecoder(), shapes, WIDTHS[0], num_classes)


def library() -> Any:
    """Return the package of U-Nets with timm's encoders.

    Raises:
        ConfigError: If it is not installed.
    """
    try:
        import segmentation_models_pytorch
    except ImportError:
        raise ConfigError(
            f"networks {PREFIX}ENCODER need segmentation-models-pytorch, which is not here: pip install "
            "'fedshift[segmentation]'"
        ) from None
    return segmentation_models_pytorch


@dataclass(frozen=True)
class _Plan:
    """Facts of a U-Net for images of a size, known before it has weights.

    Attributes:
        shapes: (C, h, w) of the maps that its decoder takes, of which some may have no channel.
        maps: The number of those that have channels.
        cut: Where the encoder is cut into stages; None where it cannot be.
        whole: The encoder's network as timm has it, for its names.
        aside: Starts of the names of what the encoder leaves out of it.
    """

    shapes: tuple[Shape, ...]
    maps: int
    cut: Cut | None
    whole: LibraryEncoder
    aside: tuple[str, ...]


class UnetEncoder(LibraryEncoder):
    """A network of timm that returns its maps; names of its weights are timm's."""

    def __init__(self, body: nn.Module, name: str, plan: _Plan) -> None:
        super().__init__(body, PREFIX + name, plan.whole.head, plan.aside)
        self._maps, self._cut = plan.maps, plan.cut

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, 3, H, W) to all maps (B, P)."""
        maps = self.body(x)[-self._maps :]
        if getattr(self.body, "output_fmt", None) == "NHWC":
            maps = [each.movedim(-1, 1) for each in maps]
        return joined(maps)

    def feature_stages(self) -> Stages | None:
        """Return its stages, one for each map; None where it is no row of modules."""
        at = self._cut
        return (
            None if at is None else Stages(tuple(modules(self.body, names) for names in at.stages), at.widths, no_rest)
        )

    def feature_levels(self) -> tuple[nn.Module, ...] | None:
        """Return the last activation of each stage; None where one has none."""
        return levels_at(self.body, self._cut)

    def outline(self, size: int) -> nn.Module:
        """Return timm's whole network without its head, whose weights are those of the encoder and more."""
        return _plan(self.own_name, size).whole.outline(size)


class LibraryDecoder(nn.Module):
    """The library's decoder of U-Nets, which is also given the size of the images."""

    def __init__(self, decoder: nn.Module, size: int) -> None:
        super().__init__()
        self.decoder = decoder
        self._size = size

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Map maps (B, C, h, w) to one of the images' size (B, 16, H, W)."""
        images = maps[0].new_empty(maps[0].shape[0], 0, self._size, self._size)  # it looks at their shape alone
        last: Tensor = self.decoder([images, *maps])
        return last


def _made(name: str, size: int) -> Any:
    return library().Unet(f"tu-{name}", encoder_weights=None, **timm_nets.arguments(name, size))


@functools.lru_cache(maxsize=8)
def _plan(name: str, size: int) -> _Plan:
    """Find out what a U-Net is.

    Raises:
        ConfigError: If there is no such network, or it takes no images of that size.
    """
    whole = without_weights(lambda: networks.bare(timm_nets.PREFIX + name, 1, size)).encoder
    assert isinstance(whole, LibraryEncoder)
    with refusing(PREFIX + name, size):
        encoder: Any = without_weights(lambda: _made(name, size)).encoder
        shapes = tuple(tuple(each.shape[1:]) for each in passed(encoder, size)[1:])
    kept = encoder.model.state_dict()
    aside = {key.rpartition(".")[0] + "." for key in whole.body.state_dict() if in_body(encoder.model, key) not in kept}
    maps = sum(shape[0] > 0 for shape in shapes)
    return _Plan(shapes, maps, cut_at_maps(encoder.model, size, maps), whole, tuple(sorted(aside)))


def build(name: str, num_classes: int, size: int) -> SplitModel:
    """Build a U-Net with an encoder of timm; weights are from torch's global generator.

    Raises:
        ConfigError: If it takes no images of that size.
    """
    plan = _plan(name, size)
    made = _made(name, size)
    encoder = UnetEncoder(made.encoder.model, name, plan)
    width: int = made.segmentation_head[0].in_channels
    return decoder_model(encoder, LibraryDecoder(made.decoder, size), plan.shapes, width, num_classes)


def find(name: str) -> Network:
    """Return a network of segmentation.

    Raises:
        ConfigError: If there is none of that name, or it cannot be an encoder.
    """
    if PREFIX + name == SMALL_UNET:
        return Network(SMALL_UNET, "small U-Net of three stages, 80,000 parameters", small)
    library()
    _plan(name, timm_nets.COMMON_SIZE)
    return Network(PREFIX + name, f"U-Net with the encoder {name} of timm", functools.partial(build, name))
