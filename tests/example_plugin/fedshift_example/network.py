"""A network of two convolutions for images of any size."""

from torch import nn

from fedshift_clients.models.networks import SplitModel


def tiny(num_classes: int, size: int) -> SplitModel:
    """Build it: features (B, 32) are the mean of the last map."""
    encoder = nn.Sequential(
        nn.Conv2d(3, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    return SplitModel(encoder, 32, num_classes)
