"""``timm:NAME``: networks of PyTorch Image Models, an optional extra (``fedshift[timm]``)."""

import functools
from typing import Any

from torch import Tensor, nn

from clients.models.libraries import Library, LibraryEncoder, passed, refusing, without_weights
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
        with refusing(self.name, size):
            return without_weights(lambda: _made(self.name.removeprefix(PREFIX), size))

    def feature_stages(self) -> Stages | None:
        """Return one stage, up to the last map, if that is (B, C, H, W). Timm hides where maps shrink on the way."""
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
    config = library().models.get_pretrained_cfg(name)
    if config is None:
        raise ConfigError(f"timm says nothing of the network {name}")
    return config


def _own_size(name: str) -> int:
    """Return the height in pixels of the images that a network was made for."""
    config = _config(name)
    return int(config.input_size[1]) if config.input_size else COMMON_SIZE


def _divided(name: str, body: Any) -> tuple[TimmEncoder, int]:
    head = _config(name).classifier
    label = str(head if isinstance(head, str) else (head or ("",))[0])
    return TimmEncoder(body, PREFIX + name, label), int(getattr(body, "head_hidden_size", None) or body.num_features)


find = functools.cache(Library("timm", lambda: library().list_models(), _own_size, _made, _divided, tagged=True).find)
