"""An encoder as a row of feature maps, for modules that sit between them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Stages:
    """An encoder cut up; it stays the owner of its layers.

    Attributes:
        maps: From the images, or the map before, to the map of each stage (B, C, H, W).
        widths: C of each.
        rest: From the last map to the features (B, D).
    """

    maps: tuple[Callable[[Tensor], Tensor], ...]
    widths: tuple[int, ...]
    rest: Callable[[Tensor], Tensor]


def feature_stages(encoder: nn.Module) -> Stages | None:
    """Cut an encoder into stages and a rest; None for one without feature maps.

    An encoder with a method ``feature_stages`` says itself. A row of layers has one stage up to each max-pooling, and
    must flatten the last.
    """
    own = getattr(encoder, "feature_stages", None)
    if own is not None:
        stages: Stages | None = own()
        return stages
    if isinstance(encoder, nn.Sequential):
        ends = [i + 1 for i, layer in enumerate(encoder) if isinstance(layer, nn.MaxPool2d)]
        if ends and len(encoder) > ends[-1] and isinstance(encoder[ends[-1]], nn.Flatten):
            blocks = [encoder[start:end] for start, end in pairwise([0, *ends])]
            return stages_of(blocks, encoder[ends[-1] :])
    return None


def stages_of(blocks: Sequence[nn.Module], rest: Callable[[Tensor], Tensor]) -> Stages:
    """Return stages that are modules; the last convolution of each, or what is in its place, says its width."""
    return Stages(tuple(blocks), tuple(_width(block) for block in blocks), rest)


def parts_of(block: nn.Module, owned: set[nn.Module]) -> list[nn.Module]:
    """Return the modules of a stage that the encoder itself calls; a stage may be put together for the purpose.

    Args:
        block: The stage.
        owned: All modules of the encoder.
    """
    if block in owned:
        return [block]
    return [part for child in block.children() for part in parts_of(child, owned)]


def stage_ends(encoder: nn.Module, stages: Stages) -> tuple[nn.Module, ...] | None:
    """Return by stage the module of the encoder that gives its map; None where a stage is not made of such modules."""
    owned = set(encoder.modules())
    parts = [parts_of(block, owned) if isinstance(block, nn.Module) else [] for block in stages.maps]
    return tuple(of_stage[-1] for of_stage in parts) if all(parts) else None


def _width(block: nn.Module) -> int:
    """Return the channels of the last layer that says how many it has. One made of others speaks for them."""
    inside: set[nn.Module] = set()
    width = 0
    for layer in block.modules():
        if layer not in inside and isinstance(getattr(layer, "out_channels", None), int):
            width = cast(int, layer.out_channels)
            inside |= set(layer.modules())
    return width


def pooled(f: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return r^F(f): global average pooling, (B, C, H, W) to (B, C), in the type of ``f`` or another."""
    return f.mean(dim=(2, 3), dtype=dtype)
