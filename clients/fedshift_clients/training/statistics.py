"""BatchNorm statistics other than the averaged ones: re-estimated from images, or those of each batch.

Running statistics are collected while weights change, on one node's images; averaged with the weights they are not
those of the averaged network. The weights themselves are left alone here.

Source of the question: Wang et al., "Why Batch Normalization Damage Federated Learning on Non-IID Data?", 2023,
https://arxiv.org/abs/2301.02982; answers to it are in the configuration (``evaluate.bn``).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift_clients.training.arrays import cloned, put
from fedshift_core.wire.names import BN_MEAN, BN_VAR


@dataclass
class Moments:
    """What a BatchNorm layer was given, by channel, (C,), float64.

    Attributes:
        sums: Over images, of each channel's mean over the map.
        squares: Likewise of its mean square.
    """

    sums: Tensor
    squares: Tensor


def layers(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return all BatchNorm layers that have running statistics, by name, in the order of the model."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }


def free_layers(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return the layers of :func:`layers` that ``model.freeze`` leaves free; frozen statistics stay in any score."""
    frozen: frozenset[str] = getattr(model, "frozen", frozenset())
    return {name: layer for name, layer in layers(model).items() if f"{name}.{BN_MEAN}" not in frozen}


@contextmanager
def by_batch(model: nn.Module, some: Sequence[_BatchNorm] | None = None) -> Iterator[None]:
    """Let BatchNorm normalise each batch by its own mean and variance; running statistics stay as they are.

    Args:
        model: Whose layers.
        some: Those layers that are meant; None for all free ones that have running statistics.
    """
    norms = list(free_layers(model).values()) if some is None else some
    before = [(norm.training, norm.track_running_stats) for norm in norms]
    for norm in norms:
        norm.training, norm.track_running_stats = True, False
    try:
        yield
    finally:
        for norm, (training, tracked) in zip(norms, before, strict=True):
            norm.training, norm.track_running_stats = training, tracked


def take(model: nn.Module, forward: Callable[[Tensor], object], batches: Iterable[Tensor]) -> dict[str, Moments]:
    """Pass images through a network in evaluation mode and sum up what its free BatchNorm layers are given.

    Each batch is normalised by its own statistics on its way, so that no layer sees what older ones made of it.

    Args:
        model: The network.
        forward: Its forward pass.
        batches: Images (B, 3, H, W), more than one each.

    Returns:
        By name of the layer; nothing of a layer that was not used.
    """
    moments_of: dict[str, Moments] = {}
    seen = Counter[str]()
    images = 0

    def note(name: str, module: nn.Module, given: tuple[Tensor, ...]) -> None:
        values = given[0].detach().float()
        var, mean = torch.var_mean(values, [dim for dim in range(values.ndim) if dim != 1], correction=0)
        mean, number = mean.double(), len(values)
        moments = moments_of.setdefault(name, Moments(torch.zeros_like(mean), torch.zeros_like(mean)))
        moments.sums += number * mean
        moments.squares += number * (var.double() + mean.square())
        seen[name] += number

    model.eval()
    handles = [norm.register_forward_pre_hook(partial(note, name)) for name, norm in free_layers(model).items()]
    try:
        with torch.no_grad(), by_batch(model):
            for x in batches:
                forward(x)
                images += len(x)
    finally:
        for handle in handles:
            handle.remove()
    for name, moments in moments_of.items():  # a layer may be used several times in a pass
        moments.sums *= images / seen[name]
        moments.squares *= images / seen[name]
    return moments_of


def of_moments(moments: Mapping[str, Moments], images: int) -> dict[str, Tensor]:
    """Return the statistics of so many images, by state-dict name: means and (biased) variances, float32."""
    statistics = {}
    for name, layer in moments.items():
        mean = layer.sums / images
        statistics[f"{name}.{BN_MEAN}"] = mean.float()
        statistics[f"{name}.{BN_VAR}"] = (layer.squares / images - mean.square()).clamp(min=0).float()
    return statistics


@contextmanager
def in_place(model: nn.Module, statistics: Mapping[str, Tensor]) -> Iterator[None]:
    """Put statistics, by state-dict name, into a model; afterwards they are what they were before."""
    state = model.state_dict()
    before = cloned({name: state[name] for name in statistics})
    try:
        put(state, statistics)
        yield
    finally:
        put(state, before)
