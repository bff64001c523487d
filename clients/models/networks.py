"""Models as the papers use them, split into an encoder (features) and a linear classifier.

* ``resnet10``, ``resnet18``: the small-image form of the FPL code family (Huang et al., CVPR 2023):
  3x3 stem of stride 1, no max-pool, stages of width 64-128-256-512 with strides 1-2-2-2, global
  average pooling; D = 512. ResNet-10 with 7 classes has 4,901,703 parameters.
* ``cnn``: the two-layer CNN of FedICON (Tan et al., NeurIPS 2023, A.1): two 5x5 convolutions without
  padding, FC(1600 -> 64); D = 64. It has no BatchNorm and needs 32x32 images. ``cnn_bn`` has BatchNorm
  after each convolution, as FedICON adds it for FedBN (A.3).
* ``cnn3``, ``cnn2``: the networks of FedSeProto (Lai et al., ECAI 2024, section 5), three or two 5x5
  convolutions and one FC layer; D = 512, so that both may exchange prototypes. They need 32x32 images.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from clients.training.settings import ModelConfig
from fedshift_wire.seeding import torch_seed

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Blueprint:
    """What a node's model is built from.

    Attributes:
        config: Its ``name`` is the node's own network.
        num_classes: C.
        size: Height and width of the images in pixels.
        seed: Of the initial weights.
    """

    config: ModelConfig
    num_classes: int
    size: int
    seed: int


class SplitModel(nn.Module):
    """A network in two parts.

    Attributes:
        encoder: Images (B, 3, H, W) to features (B, D), non-negative.
        classifier: Features (B, D) to logits (B, C).
        feature_dim: D.
        num_classes: C.
    """

    def __init__(self, encoder: nn.Module, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = nn.Linear(feature_dim, num_classes)
        self.feature_dim = feature_dim
        self.num_classes = num_classes

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (B, D) and logits (B, C) of images (B, 3, H, W) in one pass."""
        features = self.encoder(x)
        return features, self.classifier(features)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Typed as :meth:`forward`."""
        return cast(tuple[Tensor, Tensor], super().__call__(x))


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

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, width_in, H, W) to (B, width, H / stride, W / stride)."""
        h = torch.relu(self.bn1(self.conv1(x)))
        h = self.bn2(self.conv2(h)) + self.shortcut(x)
        return torch.relu(h)


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

    def feature_map(self, x: Tensor) -> Tensor:
        """Map images (B, 3, H, W) to the last stage's map (B, 512, H / 8, W / 8)."""
        h: Tensor = self.stem(x)
        for stage in self.stages:
            h = stage(h)
        return h

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, 3, H, W) to features (B, 512)."""
        return self.feature_map(x).mean(dim=(2, 3))


def _cnn(num_classes: int) -> SplitModel:
    encoder = nn.Sequential(
        nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1600, 64), nn.ReLU(),
    )  # fmt: skip
    return SplitModel(encoder, 64, num_classes)


def _cnn_bn(num_classes: int) -> SplitModel:
    encoder = nn.Sequential(
        nn.Conv2d(3, 32, 5), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1600, 64), nn.ReLU(),
    )  # fmt: skip
    return SplitModel(encoder, 64, num_classes)


def _wide_cnn(widths: tuple[int, ...], num_classes: int) -> SplitModel:
    """Build convolutions of the given widths, each halving the map, and FC to 512."""
    layers: list[nn.Module] = []
    for width_in, width in zip((3, *widths), widths, strict=False):
        layers += [nn.Conv2d(width_in, width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    side = 32 >> len(widths)
    layers += [nn.Flatten(), nn.Linear(widths[-1] * side * side, 512), nn.ReLU()]
    return SplitModel(nn.Sequential(*layers), 512, num_classes)


def _cnn3(num_classes: int) -> SplitModel:
    return _wide_cnn((32, 64, 128), num_classes)


def _cnn2(num_classes: int) -> SplitModel:
    return _wide_cnn((32, 64), num_classes)


def _resnet10(num_classes: int) -> SplitModel:
    return SplitModel(ResNetEncoder(1), 512, num_classes)


def _resnet18(num_classes: int) -> SplitModel:
    return SplitModel(ResNetEncoder(2), 512, num_classes)


MODELS: dict[str, Callable[[int], SplitModel]] = {
    "cnn": _cnn, "cnn_bn": _cnn_bn, "cnn2": _cnn2, "cnn3": _cnn3, "resnet10": _resnet10, "resnet18": _resnet18,
}  # fmt: skip


def build(name: str, num_classes: int, seed: int) -> SplitModel:
    """Build a model whose initial weights depend on ``seed`` alone.

    Args:
        name: One of ``MODELS``.
        num_classes: C.
        seed: Seed of the initial weights; the global generator is left as it was.
    """
    return _drawn_from(seed, lambda: MODELS[name](num_classes))


def initialised(seed: int, purpose: str, make: Callable[[], M]) -> M:
    """Return what ``make`` builds, with initial weights that depend on ``seed`` and ``purpose`` alone.

    For what a method adds to a network: the network's own initial weights stay those of FedAvg.
    """
    return _drawn_from(torch_seed(seed, purpose), make)


def _drawn_from(seed: int, make: Callable[[], M]) -> M:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def batchnorm_names(model: nn.Module) -> frozenset[str]:
    """Return the state-dict names of all BatchNorm parameters and buffers.

    By module type, not by name: BatchNorm inside a Sequential is found too.
    """
    return frozenset(
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        for name in module.state_dict()
    )


def set_training(model: nn.Module, *, freeze_batchnorm: bool) -> None:
    """Put the model in training mode; frozen BatchNorm keeps its statistics and its scale and shift."""
    model.train()
    if freeze_batchnorm:
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
                module.requires_grad_(False)
