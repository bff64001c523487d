"""A library's network as an encoder, and what is the same for all libraries. Names of its weights stay the library's.

Dropout and stochastic depth of such networks draw from torch's global generator; ``draws`` says that a client must
seed it (``NodeTools.own_draws``).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from clients.models.stages import Stages
from fedshift_core.errors import ConfigError

MOST_REASON = 120  # characters of a library's own error that are shown


class LibraryEncoder(nn.Module):
    """A library's network without its head.

    Attributes:
        body: The network; a state-dict name of the library's is ``body.`` and that name here.
        name: By which a configuration asks for it, such as ``torchvision:resnet18``.
        head: What the library calls the layer that was taken out, such as ``fc``.
        aside: Starts of the library's names of further parts that are not used (auxiliary outputs).
    """

    draws = True

    def __init__(self, body: nn.Module, name: str, head: str, aside: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.body = body
        self.name, self.head, self.aside = name, head, aside

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, 3, H, W) to features (B, D)."""
        features: Tensor = self.body(x)
        return features

    def feature_stages(self) -> Stages | None:
        """Return its stages; None where there is no feature map, or none that can be got at."""
        return None

    def feature_levels(self) -> tuple[nn.Module, ...] | None:
        """Return the activations whose inputs are its feature levels; None where they are not known."""
        return None

    def outline(self, size: int) -> nn.Module:
        """Return the same network for images of a size, without weights where the library can do that."""
        raise NotImplementedError

    def check(self, size: int) -> None:
        """Refuse images of a size that the network cannot take.

        Raises:
            ConfigError: With the library's reason.
        """
        body = self.outline(size)
        try:
            passed(body, size)
        except (RuntimeError, ValueError, AssertionError) as error:
            raise too_odd(self.name, size, error) from None


def too_odd(name: str, size: int, error: Exception) -> ConfigError:
    """Return the error of images that a network cannot take."""
    reason = " ".join(str(error).split())[:MOST_REASON]
    return ConfigError(f"model.name={name} takes no images of {size}x{size} pixels (dataset.size): {reason}")


def without_weights(make: Callable[[], nn.Module]) -> nn.Module:
    """Return what ``make`` builds, in evaluation mode: on the device ``meta``, or with weights where that fails."""
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                return make().eval()
        except NotImplementedError:  # it computes its shape with tensors (regnet)
            return make().eval()


def passed(network: Callable[[Tensor], Tensor], size: int, like: nn.Module | None = None) -> Tensor:
    """Pass two images of a size through a network on its own device, without gradients."""
    module = like if like is not None else network
    assert isinstance(module, nn.Module)
    with torch.no_grad():
        return network(torch.zeros(2, 3, size, size, device=next(module.parameters()).device))


def has_batchnorm(network: nn.Module) -> bool:
    """Tell whether a network has BatchNorm."""
    return any(isinstance(module, _BatchNorm) for module in network.modules())
