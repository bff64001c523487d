"""The app's own network and data: scikit-learn's digits, as they are, inverted, and turned by a quarter."""

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

from fedshift_clients.models.networks import SplitModel

WIDTH, CLASSES = 64, 10
Part = tuple[NDArray[np.uint8], NDArray[np.int64]]


def new_model() -> SplitModel:
    """Return an encoder with its classifier; both sides begin with the same weights."""
    torch.manual_seed(0)
    encoder = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, WIDTH),
        nn.ReLU(),
    )
    return SplitModel(encoder, WIDTH, CLASSES)


def load_data(partition: int, partitions: int) -> tuple[Part, Part]:
    """Return the training and the test images of a node, whose domain goes by its number."""
    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[partition::partitions]
    labels = digits.target.astype(np.int64)[partition::partitions]
    shifted = (images, 255 - images, np.rot90(images, axes=(1, 2)).copy())[partition % 3]
    cut = len(labels) * 4 // 5
    return (shifted[:cut], labels[:cut]), (shifted[cut:], labels[cut:])
