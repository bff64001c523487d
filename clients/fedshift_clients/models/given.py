"""``features:D``: what a file says of images (``dataset.features``) in place of an encoder."""

import functools

from torch import Tensor, nn

from fedshift_clients.models.catalog import GIVEN, Network
from fedshift_clients.models.networks import SplitModel
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found

PREFIX = f"{GIVEN}:"
MOST_WIDTH = 65_536


class Given(nn.Module):
    """Passes on features (B, D); of images it knows nothing."""

    def forward(self, x: Tensor) -> Tensor:
        """Return features (B, D) as they are.

        Raises:
            ConfigError: If it is given images.
        """
        if x.ndim != 2:
            raise ConfigError(
                "dataset.features: something in this run looks at the images, of which there are features alone; "
                "it needs a network in model.name"
            )
        return x


def find(width: str) -> Network:
    """Return the network of features of a width.

    Raises:
        ConfigError: If it is none.
    """
    if not width.isdecimal() or not 0 < int(width) <= MOST_WIDTH:
        raise ConfigError(f"model.name=features:{width}: {as_found(width)}; allowed are widths of 1 to {MOST_WIDTH}")
    build = functools.partial(_build, int(width))
    return Network(PREFIX + width, f"features of width {width}, computed elsewhere", build, batchnorm=False)


def _build(width: int, num_classes: int, size: int) -> SplitModel:
    return SplitModel(nn.Sequential(Given()), width, num_classes)
