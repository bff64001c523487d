"""Modules that change the map of some stages of an encoder while it trains, and nothing else (MixStyle, FedFA).

A layer looks on at a module of the encoder by a hook, so it goes with every method whose model keeps its encoder: names
and weights of the network, and its forward pass, stay as they are.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedshift_clients.models.networks import Blueprint, SplitModel
from fedshift_clients.models.stages import feature_stages, stage_ends
from fedshift_clients.modules.base import Modules
from fedshift_clients.modules.params import StageParams
from fedshift_clients.training.batches import Batch, Terms
from fedshift_core.errors import ConfigError
from fedshift_core.params import P

MOST_LOWER = 3


class MapLayer(nn.Module):
    """What happens to the map of one stage; it takes part in a model's modes and state, and not in its pass.

    Args:
        width: Channels of the map.
        params: Of the modules.

    Attributes:
        rng: Of this round's draws; None before the first, and then nothing happens.
        domains: Of the images of the batch, (B,), where the node has several and knows them.
    """

    def __init__(self, width: int, params: Any) -> None:
        super().__init__()
        self._width, self._params = width, params
        self.rng: np.random.Generator | None = None
        self.domains: Tensor | None = None

    def start_round(self, rng: np.random.Generator) -> None:
        """Take this round's draws."""
        self.rng, self.domains = rng, None

    def changed(self, f: Tensor, rng: np.random.Generator) -> Tensor:
        """Return what becomes of a map (B, C, H, W), in float32."""
        raise NotImplementedError

    def look(self, stage: nn.Module, given: tuple[Tensor, ...], f: Tensor) -> Tensor | None:
        """Change a map of local training; a hook of the stage. None: it stays.

        Draws are made on the CPU, so that they are the same on every device and no step waits for one.
        """
        if not self.training or self.rng is None or not torch.is_grad_enabled():
            return None
        if self.rng.random() >= self._params.probability:
            return None
        with torch.autocast(f.device.type, enabled=False):
            return self.changed(f.float(), self.rng).to(f.dtype)


class StageModules(Modules[P]):
    """Puts a :class:`MapLayer` after each of some stages."""

    #: Name of the modules in a configuration, and of their part in a model; what stands at each stage.
    name: ClassVar[str]
    part: ClassVar[str]
    layer: ClassVar[type[MapLayer]]

    def wrap(self, model: SplitModel, plan: Blueprint) -> SplitModel:
        """Put the layers in. With ``probability=0`` there are none and the model stays as it is.

        Raises:
            ConfigError: If the network has no such stages.
        """
        params, network = cast(StageParams, self.params), plan.config.name
        if not params.probability:
            return model
        stages = feature_stages(model.encoder)
        ends = None if stages is None else stage_ends(model.encoder, stages)
        if stages is None or ends is None:
            raise ConfigError(
                f"modules {self.name}: the network {network!r} has no separate feature maps (a row of layers "
                "with max-pooling and nn.Flatten, or an encoder with the method feature_stages)"
            )
        numbers: Sequence[int] = range(1, len(ends) + 1)
        if params.stages == "lower":
            numbers = numbers[: min(max(len(ends) - 1, 1), MOST_LOWER)]
        elif params.stages != "all":
            numbers = params.stages
        if numbers[-1] > len(ends):
            raise ConfigError(
                f"modules.{self.name}.stages: {network} has the stages 1 to {len(ends)}, found {list(numbers)}"
            )
        layers = {f"stage{n}": self.layer(stages.widths[n - 1], params) for n in numbers}
        for n, layer in zip(numbers, layers.values(), strict=True):
            ends[n - 1].register_forward_hook(layer.look)
        model.add_module(self.part, nn.ModuleDict(layers))
        model.opens_after = min(numbers[0], model.opens_after or numbers[0])
        return model

    def layers(self, model: SplitModel) -> list[MapLayer]:
        """Return the layers of a model, the first stage first."""
        return [cast(MapLayer, layer) for layer in getattr(model, self.part, nn.ModuleDict()).values()]

    def start_round(self, model: SplitModel, rng: torch.Generator) -> None:
        """Take this round's draws from ``rng``, those of each stage by themselves."""
        for layer in self.layers(model):
            seed = int(torch.randint(2**62, (), generator=rng))
            layer.start_round(np.random.default_rng(seed))

    def end_round(self, model: SplitModel) -> None:
        """Let the layers do nothing until the next round."""
        for layer in self.layers(model):
            layer.rng = None

    def start_batch(self, model: SplitModel, batch: Batch) -> None:
        """Let the layers know the domains of the images that come."""
        for layer in self.layers(model):
            layer.domains = batch.domains

    def terms(self, model: SplitModel, batch: Batch) -> Terms:
        """Return no term; what the method does besides its loss is no pass over the batch."""
        self.forget(model)
        return super().terms(model, batch)

    def forget(self, model: SplitModel) -> None:
        """Let go of the domains of the images."""
        for layer in self.layers(model):
            layer.domains = None
