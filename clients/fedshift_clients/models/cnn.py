"""Small CNNs of the papers; all need images of 32x32 pixels.

* ``cnn``: the two-layer CNN of FedICON (Tan et al., NeurIPS 2023, A.1): two 5x5 convolutions without
  padding, FC(1600 -> 64); D = 64. It has no BatchNorm. ``cnn_bn`` has BatchNorm after each convolution, as FedICON
  adds it for FedBN (A.3).
* ``cnn3``, ``cnn2``: the networks of FedSeProto (Lai et al., ECAI 2024, section 5), three or two 5x5
  convolutions and one FC layer; D = 512, so that both may exchange prototypes.
"""

from functools import partial
from itertools import pairwise

from torch import nn

from fedshift_clients.models.networks import SplitModel


def _two_layers(norms: bool, num_classes: int, size: int) -> SplitModel:
    """Build FedICON's two-layer CNN, with BatchNorm after each convolution if asked for."""
    layers: list[nn.Module] = []
    for width_in, width in ((3, 32), (32, 64)):
        layers += [nn.Conv2d(width_in, width, 5)] + [nn.BatchNorm2d(width)] * norms + [nn.ReLU(), nn.MaxPool2d(2)]
    return SplitModel(nn.Sequential(*layers, nn.Flatten(), nn.Linear(1600, 64), nn.ReLU()), 64, num_classes)


def _wide_cnn(widths: tuple[int, ...], num_classes: int, size: int) -> SplitModel:
    """Build FedSeProto's network: convolutions of the given widths, each halving the map, and FC to 512."""
    layers: list[nn.Module] = []
    for width_in, width in pairwise((3, *widths)):
        layers += [nn.Conv2d(width_in, width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    side = 32 >> len(widths)
    layers += [nn.Flatten(), nn.Linear(widths[-1] * side * side, 512), nn.ReLU()]
    return SplitModel(nn.Sequential(*layers), 512, num_classes)


cnn, cnn_bn = partial(_two_layers, False), partial(_two_layers, True)
cnn3, cnn2 = partial(_wide_cnn, (32, 64, 128)), partial(_wide_cnn, (32, 64))
