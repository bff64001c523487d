"""The network of a run of segmentation."""

from typing import Any

import torch

from fedshift_clients.models.networks import SplitModel
from fedshift_core.errors import ConfigError


def check_network(config: Any, model: SplitModel) -> None:
    """Refuse a network that gives no class for each pixel.

    Args:
        config: The run.
        model: The network as the method has it, on the CPU.

    Raises:
        ConfigError: With what it gives of an image.
    """
    side, trains = config.dataset.pixels, model.training
    model.eval()
    with torch.no_grad():
        given = tuple(model(torch.zeros(1, 3, side, side))[1].shape[1:])
    model.train(trains)
    if given != (wanted := (len(config.dataset.known().classes), side, side)):
        raise ConfigError(
            f"model.name={config.model.name}: with method={config.method['name']} logits of an image have the shape "
            f"{given}, task=segmentation needs {wanted}; allowed are unet:small, unet:NAME and others that give masks"
        )
