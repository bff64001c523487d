"""A model whose frozen beginning is computed once: it goes on from what is kept of an image.

The modules of the beginning pass on what they are given, so that whoever calls the encoder or one of its stages, with
what is kept in the place of images, gets what the complete encoder makes of the images.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from fedshift_clients.models.networks import SplitModel
from fedshift_clients.models.projection import projection_of, unprojected
from fedshift_clients.models.stages import feature_stages, parts_of
from fedshift_core.errors import ConfigError

ENCODER = "encoder"
_CLOSE = 1e-3  # relative, between both ways through an encoder: other layouts sum in another order


def depth_of(model: SplitModel, freeze: str) -> str:
    """Return how much of a model can be computed once: ``encoder``, or ``stages:N``.

    Args:
        model: With what is frozen.
        freeze: ``model.freeze``.

    Raises:
        ConfigError: If nothing can.
    """
    opens = model.opens_after
    if freeze == ENCODER:
        return ENCODER if opens is None else f"stages:{opens}"
    if freeze.startswith("stages:"):
        frozen = int(freeze.partition(":")[2])
        return f"stages:{frozen if opens is None else min(frozen, opens)}"
    raise ConfigError(f"model.precompute=on needs a frozen beginning: model.freeze=encoder or stages:N, found {freeze}")


class Shortcut:
    """The frozen beginning of a model.

    Attributes:
        depth: How much it is: ``encoder`` (without its projection), or ``stages:N``.
        names: State-dict names of its weights and buffers.
    """

    def __init__(self, model: SplitModel, depth: str, size: int) -> None:
        """Take the beginning of a model, and try on random images whether both ways lead to the same features.

        Raises:
            ConfigError: If something in it trains or stays on the node, or they do not.
        """
        self.depth = depth
        self._model = model
        self._begin, self._parts = _beginning(model, depth)
        inside = {id(tensor) for part, _ in self._parts for tensor in (*part.parameters(), *part.buffers())}
        projection = projection_of(model.encoder)
        if projection is not None:
            inside -= {id(tensor) for tensor in projection.parameters()}
        self.names = tuple(name for name, tensor in model.state_dict(keep_vars=True).items() if id(tensor) in inside)
        if open_names := sorted(set(self.names) - model.frozen):
            raise ConfigError(f"model.precompute=on: {open_names[0]} trains, but lies in what is computed once")
        self._try(size)

    @torch.no_grad()
    def beginning(self, images: Tensor) -> Tensor:
        """Map images (B, 3, H, W) to what is kept of them, features (B, D) or maps (B, C, h, w); it must be open."""
        return self._begin(images)

    def close(self) -> None:
        """Let the modules of the beginning pass on what they are given."""
        for part, method in self._parts:
            vars(part)[method] = _same

    def _open(self) -> None:
        for part, method in self._parts:
            vars(part).pop(method, None)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Let the model take images for a while; then it is closed."""
        self._open()
        try:
            yield
        finally:
            self.close()

    def _try(self, size: int) -> None:
        model, mode = self._model, self._model.training
        images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
        images = images.to(next(model.parameters()).device)
        model.eval()
        with torch.no_grad():
            wanted, kept = model.encoder(images), self.beginning(images)
            self.close()
            features = model.encoder(kept)
        self._open()
        model.train(mode)
        if wanted.shape != features.shape or not torch.allclose(wanted, features, rtol=_CLOSE, atol=_CLOSE):
            raise ConfigError(
                f"model.precompute=on: the network does not go on from what is kept of {self.depth} as it does from "
                "images; allowed is off"
            )


def _same(kept: Tensor) -> Tensor:
    return kept


def _beginning(model: SplitModel, depth: str) -> tuple[Callable[[Tensor], Tensor], list[tuple[nn.Module, str]]]:
    """Return how the beginning is computed, and its modules that belong to the encoder, with the method of each."""
    encoder = model.encoder
    if depth == ENCODER:
        if projection_of(encoder) is None:
            return encoder, [(encoder, "forward")]
        in_row = isinstance(encoder, nn.Sequential)
        parts = [(part, "forward") for part in list(encoder.children())[:-1]] if in_row else [(encoder, "unprojected")]
        return partial(unprojected, encoder), parts
    stages = feature_stages(encoder)
    number = int(depth.partition(":")[2])
    blocks = [block for block in (stages.maps if stages is not None else ())[:number] if isinstance(block, nn.Module)]
    if len(blocks) < number:
        raise ConfigError(f"model.precompute=on: the network has no stages that can be separated before {depth}")
    owned = set(encoder.modules())
    return nn.Sequential(*blocks), [(part, "forward") for block in blocks for part in parts_of(block, owned)]
