"""``timm:NAME``: networks of PyTorch Image Models, an optional extra (``fedshift[timm]``)."""

import difflib
import functools
from typing import Any

from torch import Tensor, nn

from clients.models.catalog import Network, unknown
from clients.models.libraries import LibraryEncoder, has_batchnorm, passed, too_odd, without_weights
from clients.models.networks import SplitModel
from clients.models.stages import Stages
from fedshift_core.errors import ConfigError

PREFIX = "timm:"
COMMON_SIZE = 224


def library() -> Any:
    """Return the package.

    Raises:
        ConfigError: If it is not installed.
    """
    try:
        import timm
    except ImportError:
        raise ConfigError("networks timm:NAME need timm, which is not here: pip install 'fedshift[timm]'") from None
    return timm


@functools.cache
def find(name: str) -> Network:
    """Return a network of timm.

    Raises:
        ConfigError: If timm is not installed or has no network of that name.
    """
    timm = library()
    known = timm.list_models()
    if name.partition(".")[0] not in known:
        raise unknown(name, "timm", difflib.get_close_matches(name[:50], known, n=3))
    size = _own_size(name)
    try:
        outline = without_weights(lambda: _made(name, size))
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        raise too_odd(PREFIX + name, size, error) from None
    title = f"{name} of timm, {_width(outline)} features"
    return Network(PREFIX + name, title, functools.partial(build, name), batchnorm=has_batchnorm(outline))


def build(name: str, num_classes: int, size: int) -> SplitModel:
    """Build a network with weights from torch's global generator.

    Raises:
        ConfigError: If it takes no images of that size.
    """
    try:
        body = _made(name, size)
    except NotImplementedError:  # the device ``meta`` cannot hold it (``libraries.without_weights``)
        raise
    except (RuntimeError, ValueError, AssertionError) as error:
        raise too_odd(PREFIX + name, size, error) from None
    return SplitModel(TimmEncoder(body, PREFIX + name, _head(name)), _width(body), num_classes)


def pretrained(name: str) -> dict[str, Tensor]:
    """Fetch timm's weights of a network, by its own names.

    Raises:
        ConfigError: If it has none.
        OSError: If they cannot be fetched.
    """
    timm = library()
    if not timm.is_model_pretrained(name):
        raise ConfigError(f"model.download: timm has no weights of {name}")
    made: nn.Module = timm.create_model(name, pretrained=True)
    return dict(made.state_dict())


class TimmEncoder(LibraryEncoder):
    """A network of timm without its classifier."""

    def outline(self, size: int) -> nn.Module:
        """Return the same network for images of a size, without weights where that can be.

        Raises:
            ConfigError: If it takes no images of that size.
        """
        try:
            return without_weights(lambda: _made(self.name.removeprefix(PREFIX), size))
        except (RuntimeError, ValueError, AssertionError) as error:
            raise too_odd(self.name, size, error) from None

    def feature_stages(self) -> Stages | None:
        """Return one stage, up to the last map, where that is (B, C, H, W); where maps shrink on the way timm hides."""
        name = self.name.removeprefix(PREFIX)
        body: Any = self.body
        shape = _last_map(name)
        if len(shape) != 4 or shape[1] != body.num_features or shape[2] != shape[3]:
            return None
        return Stages((body.forward_features,), (shape[1],), body.forward_head)


@functools.cache
def _last_map(name: str) -> tuple[int, ...]:
    size = _own_size(name)
    outline: Any = without_weights(lambda: _made(name, size))
    return tuple(passed(outline.forward_features, size, outline).shape)


def _made(name: str, size: int) -> nn.Module:
    more = {"img_size": size} if _config(name).fixed_input_size else {}
    made: nn.Module = library().create_model(name, pretrained=False, num_classes=0, **more)
    return made


def _config(name: str) -> Any:
    found = library().models.get_pretrained_cfg(name)
    if found is None:
        raise ConfigError(f"timm says nothing of the network {name}")
    return found


def _own_size(name: str) -> int:
    """Return the height in pixels of the images that a network was made for."""
    config = _config(name)
    return int(config.input_size[1]) if config.input_size else COMMON_SIZE


def _width(body: Any) -> int:
    return int(getattr(body, "head_hidden_size", None) or body.num_features)


def _head(name: str) -> str:
    head = _config(name).classifier
    return str(head if isinstance(head, str) else (head or ("",))[0])
