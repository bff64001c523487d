"""Small CNNs of the papers; all need images of 32x32 pixels.

* ``cnn``: the two-layer CNN of FedICON (Tan et al., NeurIPS 2023, A.1): two 5x5 convolutions without
  padding, FC(1600 -> 64); D = 64. It has no BatchNorm. ``cnn_bn`` has BatchNorm after each convolution, as FedICON
  adds it for FedBN (A.3).
* ``cnn3``, ``cnn2``: the networks of FedSeProto (Lai et al., ECAI 2024, section 5), three or two 5x5
  convolutions and one FC layer; D = 512, so that both may exchange prototypes.
"""

from torch import nn

from fedshift_clients.models.networks import SplitModel


def cnn(num_classes: int, size: int) -> SplitModel:
    """Build FedICON's two-layer CNN."""
    encoder = nn.Sequential(
        nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1600, 64), nn.ReLU(),
    )  # fmt: skip
    return SplitModel(encoder, 64, num_classes)


def cnn_bn(num_classes: int, size: int) -> SplitModel:
    """Build the same with BatchNorm after each convolution."""
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


def cnn3(num_classes: int, size: int) -> SplitModel:
    """Build FedSeProto's network of three convolutions."""
    return _wide_cnn((32, 64, 128), num_classes)


def cnn2(num_classes: int, size: int) -> SplitModel:
    """Build FedSeProto's network of two convolutions."""
    return _wide_cnn((32, 64), num_classes)
