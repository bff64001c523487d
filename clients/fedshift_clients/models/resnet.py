"""ResNets in the small-image form of the FPL code family (Huang et al., CVPR 2023).

3x3 stem of stride 1, no max-pool, stages of width 64-128-256-512 with strides 1-2-2-2, global average pooling; D = 512.
ResNet-10 with 7 classes has 4,901,703 parameters.
"""

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from fedshift_clients.models.networks import SplitModel
from fedshift_clients.models.stages import Stages, pooled, stages_of


class BasicBlock(nn.Module):
    """Residual block of two 3x3 convolutions (He et al., CVPR 2016)."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width:
            self.shortcut = nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.relu = nn.ReLU()  # the last

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, width_in, H, W) to (B, width, H / stride, W / stride)."""
        h = torch.relu(self.bn1(self.conv1(x)))
        out: Tensor = self.relu(self.bn2(self.conv2(h)) + self.shortcut(x))
        return out


class ResNetEncoder(nn.Module):
    """Small-image ResNet up to the pooled features; ``blocks`` blocks in each of four stages."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        widths, strides = (64, 128, 256, 512), (1, 2, 2, 2)
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.stages = nn.ModuleList()
        width_in = 64
        for width, stride in zip(widths, strides, strict=True):
            first = BasicBlock(width_in, width, stride)
            rest = [BasicBlock(width, width, 1) for _ in range(blocks - 1)]
            self.stages.append(nn.Sequential(first, *rest))
            width_in = width

    def feature_stages(self) -> Stages:
        """Return the four stages of the paper, the first with the stem."""
        first, *others = self.stages
        return stages_of([nn.Sequential(self.stem, first), *others], pooled)

    def feature_levels(self) -> tuple[nn.Module, ...]:
        """Return the activations at the end of the stem and of each stage."""
        return self.stem[2], *(cast(BasicBlock, cast(nn.Sequential, stage)[-1]).relu for stage in self.stages)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, 3, H, W) to features (B, 512)."""
        h: Tensor = self.stem(x)
        for stage in self.stages:
            h = stage(h)
        return h.mean(dim=(2, 3))


def _resnet(blocks: int, num_classes: int, size: int) -> SplitModel:
    """Build a ResNet with so many blocks in each stage."""
    return SplitModel(ResNetEncoder(blocks), 512, num_classes)


resnet10, resnet18 = partial(_resnet, 1), partial(_resnet, 2)
