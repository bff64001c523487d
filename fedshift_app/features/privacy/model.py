"""Needs of noise: arrays that can get it, and gradients of single images."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fedshift_app.features.privacy import Options
from fedshift_core import dp_accounting
from fedshift_core.errors import ConfigError

if TYPE_CHECKING:  # torch
    from fedshift_app.config.sections import RunConfig
    from fedshift_clients.models.networks import SplitModel

_IMAGES = 2  # random ones, on which gradients are held against autograd's


def check_shared(config: "RunConfig", shared: Mapping[str, NDArray[Any]]) -> None:
    """Refuse a model that shares arrays which cannot get noise.

    Raises:
        ConfigError: If a shared array is a single number, or has no real numbers.
    """
    privacy = Options.read(config)
    if not privacy.of_updates:
        return
    for name, array in shared.items():
        if array.dtype.kind != "f" or array.ndim == 0:
            raise ConfigError(
                f"privacy.name={privacy.name}: {name} would travel, a single number of type {array.dtype} that cannot "
                "get noise; keep BatchNorm on the nodes (model.bn=local), or use a model without it "
                "(model.name=cnn)"
            )


def check_network(config: "RunConfig", model: "SplitModel") -> None:
    """Refuse a network whose images are mixed in a batch, or of which Opacus finds no gradients of single images.

    Args:
        config: The run.
        model: The network, complete, on the CPU.

    Raises:
        ConfigError: With the names of its modules, or if packages are missing.
    """
    if not Options.read(config).of_images:
        return
    import torch

    from fedshift_clients.training.per_image import check

    size = config.dataset.pixels
    dp_accounting.check_installed()  # only here: results of such runs are read without them
    x = torch.rand(_IMAGES, 3, size, size, generator=torch.Generator().manual_seed(0))
    check(model, x, freeze_batchnorm=config.model.bn == "freeze")
