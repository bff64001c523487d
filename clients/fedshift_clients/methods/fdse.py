"""FDSE client [Wang et al., 2025].

Paper: "Federated Learning with Domain Shift Eraser", Zheng Wang, Zihui Wang, Zheng Wang, Xiaoliang Fan, Cheng Wang,
CVPR 2025; https://arxiv.org/abs/2503.13063. Reference code: WwZzz/FDSE_CVPR25, commit 01f7bd7 (``algorithm/fdse.py``).

Each convolution and each linear layer of the encoder becomes an extractor of half its channels (``dfe``), which all
nodes share, and an eraser (``dse``) of the node's own that makes the other half and whose BatchNorm sees no other node.

Deviations: (1) the term compares each channel's mean and variance with the global ones, where the released code mixes
channels and layers (``kl=released``); (2) a network's own BatchNorm stays in its place behind the layer, and its
activations where they were; a linear layer of an odd width loses the one channel too many, as its convolutions do;
(3) a batch of one image, where a layer has one value for each channel, goes by running statistics, and the
layer has no part in the term.

C channels; L layers.
The global ones are the running statistics, g and v, of the BatchNorm behind an eraser, as they came.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift_clients.base import DomainClient
from fedshift_clients.models.networks import Blueprint, SplitModel, initialised
from fedshift_clients.training.arrays import view
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.methods.fdse import FDSEParams
from fedshift_core.plural import plural


@dataclass(frozen=True)
class Outcome:
    """What one layer gave in a training pass, and what it is held to.

    Attributes:
        mean: Of each channel over images and map, (C,), float32.
        var: Its variance, (C,), biased.
        global_mean: g, (C,).
        global_var: v, (C,).
        eps: Of the BatchNorm behind it: added to both variances.
        momentum: Of the BatchNorm behind it.
    """

    mean: Tensor
    var: Tensor
    global_mean: Tensor
    global_var: Tensor
    eps: float
    momentum: float


def layer_weights(layers: int, beta: float) -> list[float]:
    r"""Return :math:`w_l=e^{\beta l}/\sum_ke^{\beta k}` of layers from the images on."""
    powers = [math.exp(beta * (place + 1 - layers)) for place in range(layers)]  # no more than 1: beta may be large
    return [weight / sum(powers) for weight in powers]


def shift(outcomes: Sequence[Outcome], beta: float) -> Tensor:
    r"""Hold the statistics of each channel to the global ones.

    .. math:: \sum_lw_l\frac1C\sum_c\frac12\Big(\log\frac{s_c}{v_c}+\frac{v_c+(g_c-f_c)^2}{s_c}-1\Big)

    which is :math:`KL(\mathcal N(g,v)\,\|\,\mathcal N(f,s))` with the mean f and the variance s of the batch.

    Args:
        outcomes: Of each layer, from the images on; at least one.
        beta: How much more later layers weigh.
    """
    total = outcomes[0].mean.new_zeros(())
    for weight, at in zip(layer_weights(len(outcomes), beta), outcomes, strict=True):
        s, v = at.var + at.eps, at.global_var + at.eps
        each = 0.5 * (torch.log(s / v) + (v + (at.global_mean - at.mean).square()) / s - 1)
        total = total + weight * each.mean()
    return total


Running = tuple[Tensor, Tensor]  # mean and variance of earlier layers and steps of the round, one number each


def shift_as_released(outcomes: Sequence[Outcome], beta: float, running: Running | None) -> tuple[Tensor, Running]:
    r"""Compute the term as the released code does, which is no divergence.

    .. math:: \sum_lw_l\frac1C\sum_c\Big(\frac{g_c^2-f^2}{2s}+\frac12\log\frac s{v_c}+\frac{v_c}{2s}\Big)

    Here f and s are the mean and the unbiased variance over the channels of their means; both are running averages
    that go on from layer to layer and from step to step.

    Args:
        outcomes: Of each layer, from the images on; at least one.
        beta: How much more later layers weigh.
        running: Of the local round, if there was a step before.

    Returns:
        The term, and the running averages with this step.
    """
    total = outcomes[0].mean.new_zeros(())
    for weight, at in zip(layer_weights(len(outcomes), beta), outcomes, strict=True):
        f, s = at.mean.mean(), at.mean.var()
        if running is not None:
            f = (1 - at.momentum) * running[0] + at.momentum * f
            s = (1 - at.momentum) * running[1] + at.momentum * s
        running = f, s
        g, v = at.global_mean, at.global_var
        of_mean = ((g.square() - f.square()) / (2 * s)).mean()
        of_var = 0.5 * (torch.log(s / (v + 1e-8)) + v / (s + 1e-8)).mean()
        total = total + weight * (of_mean + of_var)
    return total, (f.detach(), s.detach())


ERASED_BY = 3  # height and width of an eraser's depth-wise convolution of a map
PRIVATE = (".dse_bn.running_mean", ".dse_bn.running_var", ".dse_bn.num_batches_tracked")
ERASER = (".dse_bn.weight", ".dse_bn.bias", ".dse_conv.weight")


# --- the layers ------------------------------------------------------------------------------------


def _has_no_variance(x: Tensor) -> bool:
    """Tell whether a map (B, C, H, W) has one value for each channel."""
    return x.numel() == x.shape[1]


class _AnyBatch(nn.BatchNorm2d):
    """BatchNorm that goes by its running statistics where there is one value for each channel, hence no variance."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (B, C, H, W)."""
        if self.training and _has_no_variance(x):
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


class Erased(nn.Module):
    """Replaces a convolution or a linear layer by extractor, eraser, and both halves side by side.

    x1 = BN_dse(dfe(x)); the output is [x1, dse(x1)] + bias, and BN_dfe of it where the network has no BatchNorm there.

    Args:
        layer: Whose place it takes.
        after: What the network has behind it, which stays where it is, such as its own BatchNorm; None for nothing.

    Attributes:
        out_channels: Of the whole, those of the layer.
        watched: Keep the statistics of each training pass that has a variance.
        seen: Mean and variance of the output by channel, (C,) each, before BN_dfe.
    """

    def __init__(self, layer: nn.Conv2d | nn.Linear, after: nn.Module | None) -> None:
        super().__init__()
        self.is_flat = isinstance(layer, nn.Linear)
        if isinstance(layer, nn.Linear):
            self.out_channels = layer.out_features
            half, size = (self.out_channels + 1) // 2, 1
            self.dfe_conv = nn.Conv2d(layer.in_features, half, 1)
        else:
            self.out_channels = layer.out_channels
            half, size = (self.out_channels + 1) // 2, ERASED_BY
            like = cast(Any, layer)  # torch types what a convolution has more loosely than what it takes
            self.dfe_conv = nn.Conv2d(
                layer.in_channels, half, like.kernel_size, like.stride, like.padding, like.dilation
            )
        self.dse_bn = _AnyBatch(half)
        self.dse_conv = nn.Conv2d(half, half, size, padding=size // 2, groups=half, bias=False)
        self.dfe_bias = nn.Parameter(torch.zeros(self.out_channels))
        normed = isinstance(after, _BatchNorm) and after.num_features == self.out_channels
        self.dfe_bn = None if normed else _AnyBatch(self.out_channels)
        self._behind = (after,)  # in a tuple: it is the network's, not a part of this layer
        self.watched = False
        self.seen: tuple[Tensor, Tensor] | None = None

    @property
    def norm(self) -> _BatchNorm:
        """The BatchNorm that is given the output."""
        return cast(_BatchNorm, self._behind[0] if self.dfe_bn is None else self.dfe_bn)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C_in, H, W) as the layer did, or (B, D_in) to (B, D)."""
        x1 = self.dse_bn(self.dfe_conv(x[..., None, None] if self.is_flat else x))
        y = torch.cat([x1, self.dse_conv(x1)], dim=1)[:, : self.out_channels] + self.dfe_bias[:, None, None]
        if self.watched and self.training and not _has_no_variance(y):
            var, mean = torch.var_mean(y.float(), dim=(0, 2, 3), correction=0)
            self.seen = mean, var
        if self.dfe_bn is not None:
            y = self.dfe_bn(y)
        return y.flatten(1) if self.is_flat else y


def erased(model: SplitModel, name: str) -> SplitModel:
    """Put an :class:`Erased` in the place of each convolution and linear layer of a model's encoder.

    Args:
        model: The plain network; the new layers' weights come from torch's global generator.
        name: Of the network, for messages.

    Raises:
        ConfigError: If the encoder has other layers with weights, or none that can be replaced.
    """
    _check_layers(model.encoder, name)
    replaced = 0
    for parent in list(model.encoder.modules()):
        children = list(parent.named_children())
        for place, (key, layer) in enumerate(children):
            if isinstance(layer, nn.Conv2d | nn.Linear):
                after = children[place + 1][1] if place + 1 < len(children) else None
                setattr(parent, key, Erased(layer, after))
                replaced += 1
    if not replaced:
        raise ConfigError(f"method fdse: the network {name!r} has no convolution or linear layer to erase shift behind")
    return model


def _check_layers(encoder: nn.Module, name: str) -> None:
    for path, module in encoder.named_modules():
        if not list(module.parameters(recurse=False)) or isinstance(module, _BatchNorm | nn.Linear):
            continue
        if type(module) is nn.Conv2d and module.groups == 1 and module.padding_mode == "zeros":
            continue
        kind = f"{type(module).__name__} of {plural(module.groups, 'group')}" if isinstance(module, nn.Conv2d) else None
        raise ConfigError(
            f"method fdse is made of plain convolutions, linear layers and BatchNorm; the network {name!r} has "
            f"{path or 'an encoder that is'}: {kind or type(module).__name__}"
        )


def layers_of(model: nn.Module) -> list[Erased]:
    """Return the erased layers, from the images on."""
    return [module for module in model.modules() if isinstance(module, Erased)]


# --- the client ------------------------------------------------------------------------------------


class FDSEClient(DomainClient[FDSEParams]):
    """Cross-entropy + lambda times the shift of statistics behind erasers that are the node's own."""

    @classmethod
    def check_run(cls, params: FDSEParams, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Refuse to train without BatchNorm's statistics, and layers that are computed once."""
        if model.precompute:
            raise ConfigError(
                "model.precompute=on: fdse gives each node layers of its own within the encoder; set it off"
            )
        if model.bn not in ("average", "local"):
            raise ConfigError(
                f"method fdse goes by BatchNorm's statistics: model.bn={model.bn}; allowed are average, local"
            )

    @classmethod
    def build_model(cls, plan: Blueprint, params: FDSEParams) -> SplitModel:
        """Build the network with FedAvg's classifier and erased layers."""
        plain = super().build_model(plan, params)
        return initialised(plan.seed, "fdse", lambda: erased(plain, plan.config.name))

    @classmethod
    def private(cls, model: SplitModel, config: ModelConfig, params: FDSEParams) -> frozenset[str]:
        """Return the statistics of the erasers' BatchNorm; with ``bn=local`` all BatchNorm."""
        own = frozenset(name for name in model.state_dict() if name.endswith(PRIVATE))
        return own | super().private(model, config, params)

    def received(self) -> None:
        """Put the node's own erasers, which the server mixed, in the place of the mean ones.

        Raises:
            FedShiftError: If they are not those of the model.
        """
        for name, array in self.knowledge.items():
            if not name.endswith(ERASER) or name not in self.state or array.shape != self.state[name].shape:
                raise FedShiftError(f"the server's {name} of shape {array.shape} is no eraser of this network")
            self.state[name].copy_(view(array))

    def start_round(self, server_round: int) -> None:
        """Watch the layers from round 2 on, and keep the global statistics as they came."""
        self._layers = layers_of(self.model)
        self._running: Running | None = None
        # BatchNorm here has running statistics.
        norms = [(cast(Tensor, each.norm.running_mean), cast(Tensor, each.norm.running_var)) for each in self._layers]
        self._global = [(mean.clone(), var.clone()) for mean, var in norms]
        self._watch(on=server_round > 1 and self.params.lambda_kl > 0)

    def own_terms(self, features: Tensor, batch: Batch) -> Terms:
        """Return the term, which is over the layers that train."""
        p, outcomes = self.params, list[Outcome]()
        for layer, sent in zip(self._layers, self._global, strict=True):
            if layer.seen is not None:
                outcomes.append(Outcome(*layer.seen, *sent, layer.norm.eps, cast(float, layer.norm.momentum)))
                layer.seen = None
        if not outcomes:
            return {}
        if p.kl == "gaussian":
            return {"kl": p.lambda_kl * shift(outcomes, p.beta)}
        term, self._running = shift_as_released(outcomes, p.beta, self._running)
        return {"kl": p.lambda_kl * term}

    def finish_round(self, server_round: int) -> Arrays:
        """Watch no more; contribute nothing."""
        self._watch(on=False)
        return {}

    def _watch(self, *, on: bool) -> None:
        for layer in self._layers:
            layer.watched, layer.seen = on, None
