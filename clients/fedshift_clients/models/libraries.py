"""A library's network as an encoder, and what all libraries share. Names of its weights stay the library's."""

import difflib
import functools
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift_clients.models.catalog import Network, unknown
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.models.stages import Stages
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

    def __init__(self, body: nn.Module, name: str, head: str, aside: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.body = body
        self.name, self.head, self.aside = name, head, aside

    @property
    def own_name(self) -> str:
        """The library's name of the network."""
        return self.name.partition(":")[2]

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
        with refusing(self.name, size):
            passed(body, size)


@dataclass(frozen=True)
class Library:
    """The networks of a library, by the library's own names.

    Attributes:
        name: The library's name.
        names: Returns the names of all networks.
        own_size: Returns the height in pixels of images that a network takes in any case.
        made: Returns the network for images of a size, with weights from torch's global generator.
        divided: Returns a network without its head, and the number of its features.
        tagged: Whether a name may end in a dot and the name of its weights.
    """

    name: str
    names: Callable[[], Collection[str]]
    own_size: Callable[[str], int]
    made: Callable[[str, int], nn.Module]
    divided: Callable[[str, nn.Module], tuple[LibraryEncoder, int]]
    tagged: bool = False

    def find(self, name: str) -> Network:
        """Return a network.

        Raises:
            ConfigError: If there is none of that name, or it cannot be divided into encoder and classifier.
        """
        known = self.names()
        if (name.partition(".")[0] if self.tagged else name) not in known:
            raise unknown(name, self.name, difflib.get_close_matches(name[:50], known, n=3))
        full_name, size = f"{self.name}:{name}", self.own_size(name)
        with refusing(full_name, size):
            outline = without_weights(lambda: self.made(name, size))
        batchnorm = has_batchnorm(outline)
        title = f"{name} of {self.name}, {self.divided(name, outline)[1]} features"
        return Network(full_name, title, functools.partial(self.build, name), batchnorm=batchnorm)

    def build(self, name: str, num_classes: int, size: int) -> SplitModel:
        """Build a network with weights from torch's global generator.

        Raises:
            ConfigError: If it takes no images of that size.
        """
        with refusing(f"{self.name}:{name}", size, NotImplementedError):  # which ``without_weights`` waits for
            body = self.made(name, size)
        return SplitModel(*self.divided(name, body), num_classes)


@contextmanager
def refusing(name: str, size: int, *through: type[Exception]) -> Iterator[None]:
    """Turn what a library raises, except ``through``, into an error with the library's reason.

    Raises:
        ConfigError: With the network, as a configuration asks for it.
    """
    try:
        yield
    except through:
        raise
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        reason = " ".join(str(error).split())[:MOST_REASON]
        raise ConfigError(
            f"model.name={name} takes no images of {size}x{size} pixels (dataset.size): {reason}"
        ) from None


def without_weights(make: Callable[[], nn.Module]) -> nn.Module:
    """Return what ``make`` builds, in evaluation mode: on the device ``meta``, or with weights where that fails."""
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                return make().eval()
        except NotImplementedError:  # it computes its shape with tensors (regnet)
            return make().eval()


def blank(network: nn.Module, size: int) -> Tensor:
    """Return two images of zeros of a size on a network's own device."""
    return torch.zeros(2, 3, size, size, device=next(network.parameters()).device)


def passed(network: nn.Module, size: int) -> Any:
    """Pass two images of a size through a network, without gradients."""
    with torch.no_grad():
        return network(blank(network, size))


def has_batchnorm(network: nn.Module) -> bool:
    """Tell whether a network has BatchNorm."""
    return any(isinstance(module, _BatchNorm) for module in network.modules())
