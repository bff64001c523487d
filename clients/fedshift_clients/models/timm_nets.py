"""``timm:NAME``: networks of PyTorch Image Models, an optional extra (``fedshift[timm]``)."""

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedshift_clients.models.libraries import Library, LibraryEncoder, blank, refusing, without_weights
from fedshift_clients.models.stages import Stages
from fedshift_clients.models.timm_stages import Cut, cut, levels_at, modules
from fedshift_core.errors import ConfigError

PREFIX = "timm:"
COMMON_SIZE = 224
_FILES = ("model.safetensors", "pytorch_model.bin")  # of weights, on the hub


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


def fetched() -> list[str]:
    """Return the networks whose weights are in the cache of Hugging Face's hub, with their tags; none without timm."""
    try:
        from huggingface_hub import constants
    except ImportError:
        return []
    files = Path(constants.HF_HUB_CACHE).glob("models--timm--*/snapshots/*/*.*")
    return sorted({PREFIX + file.parts[-4].rpartition("--")[2] for file in files if file.name in _FILES})


def normalisation(name: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return mean and std with which timm's weights of a network were trained; None if it does not say."""
    config = _config(name)
    return (tuple(config.mean), tuple(config.std)) if config.mean and config.std else None


class TimmEncoder(LibraryEncoder):
    """A network of timm without its classifier."""

    def outline(self, size: int) -> nn.Module:
        """Return the same network for images of a size, without weights where that can be.

        Raises:
            ConfigError: If it takes no images of that size.
        """
        with refusing(self.name, size):
            return without_weights(lambda: _made(self.own_name, size))

    def feature_stages(self) -> Stages | None:
        """Return its stages by timm's ``feature_info``, the stem with the first, or one for the whole network.

        It is one where the network is no row of modules, and None where the last map is not (B, C, H, W).
        """
        body: Any = self.body
        width, at = _maps(self.own_name)
        if at is not None:
            return Stages(tuple(modules(body, names) for names in at.stages), at.widths, body.forward_head)
        return Stages((body.forward_features,), (width,), body.forward_head) if width else None

    def feature_levels(self) -> tuple[nn.Module, ...] | None:
        """Return the last activation of the stem, if any, and of each stage; None where a stage has none.

        In a ResNet it follows the sum of the last block; where a block ends without one it is inside (``timm_stages``).
        """
        return levels_at(self.body, _maps(self.own_name)[1])


@functools.cache
def _maps(name: str) -> tuple[int, Cut | None]:
    """Return the width of the last map, 0 if it is not (B, C, H, W), and where the network is cut."""
    size = _own_size(name)
    outline: Any = without_weights(lambda: _made(name, size))
    with torch.no_grad():
        last: object = outline.forward_features(blank(outline, size))
    shape = tuple(last.shape) if isinstance(last, Tensor) else ()  # crossvit: tokens of each scale, in a list
    if len(shape) != 4 or shape[1] != outline.num_features or shape[2] != shape[3]:
        return 0, None
    return shape[1], cut(outline, size)


def arguments(name: str, size: int) -> dict[str, Any]:
    """Return the arguments of ``timm.create_model`` for images of a size, besides name and classes."""
    return {"img_size": size} if _config(name).fixed_input_size else {}


def _made(name: str, size: int) -> nn.Module:
    made: nn.Module = library().create_model(name, pretrained=False, num_classes=0, **arguments(name, size))
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
