r"""Gradients of depthwise convolutions in bfloat16 on a CPU, five to twelve times as fast as PyTorch's.

oneDNN, which computes them there, is fast at the gradient of a depthwise convolution's kernels for those of 3x3 alone.
That of 5x5 (EfficientNet, MobileNetV3) takes sixty to two hundred times as long as the convolution. But it is a sum for
each weight that needs no other weight,

.. math:: \frac{\partial\ell}{\partial w_{c,i,j}}=\sum_{b,y,x}\frac{\partial\ell}{\partial o_{b,c,y,x}}\,
    x_{b,c,sy+i,sx+j},

so here several of 3x3, each of the maps shifted, are put together. And with a stride the gradient of maps takes twenty
to thirty times as long in bfloat16 as in float32, which is taken. The same products are summed in another order.
In float32 little would be gained, and PyTorch's own are taken: the bits stay.
"""

import functools
import sys
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FAST = 3  # height and width of the kernels that oneDNN is fast at
TIMM = "timm.layers"
Pair = tuple[int, int]


class Depthwise(torch.autograd.Function):
    """``F.conv2d`` of one kernel a channel on a CPU, with these gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
        """Convolve maps (B, C, H, W) with kernels (C, 1, I, J), I and J at least 3; zeros are before and after."""
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return F.conv2d(x, weight, bias, stride, padding, groups=len(weight))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of maps, kernels and shifts."""
        (g,) = gradients
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias, *_ = ctx.needs_input_grad
        maps = None
        if of_x:
            dtype = x.dtype if ctx.stride == (1, 1) else torch.float32
            maps = _native(g.to(dtype), x.to(dtype), weight.to(dtype), ctx.stride, ctx.padding).to(x.dtype)
        return (
            maps,
            _of_kernels(g, x, weight, ctx.stride, ctx.padding) if of_weight else None,
            g.sum((0, 2, 3)) if of_bias else None,
            None,
            None,
        )


def _of_kernels(g: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Return the gradient of kernels, (C, 1, I, J)."""
    if max(weight.shape[2:]) == FAST:
        return _native(g, x, weight, stride, padding, of_kernels=True)
    height, width = ((count - 1) * step + FAST for count, step in zip(g.shape[2:], stride, strict=True))
    layout = torch.channels_last if x.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    padded = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    part, rows = weight[:, :, :FAST, :FAST].contiguous(), []
    starts = [_starts(length) for length in weight.shape[2:]]
    for i, new_rows in starts[0]:
        row = []
        for j, new_columns in starts[1]:
            shifted = padded[:, :, i : i + height, j : j + width].contiguous(memory_format=layout)
            found = _native(g, shifted, part, stride, (0, 0), of_kernels=True)
            row.append(found[:, :, FAST - new_rows :, FAST - new_columns :])
        rows.append(torch.cat(row, dim=3))
    return torch.cat(rows, dim=2)


def _starts(length: int) -> list[tuple[int, int]]:
    """Return where parts of three begin that cover a length, and how much of each the one before does not have."""
    starts = [*range(0, length - FAST, FAST), length - FAST]
    return [(start, FAST if number == 0 else start - starts[number - 1]) for number, start in enumerate(starts)]


def _native(g: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, *, of_kernels: bool = False) -> Tensor:
    """Return PyTorch's own gradient of maps, or of kernels."""
    wanted = [not of_kernels, of_kernels, False]
    found = torch.ops.aten.convolution_backward(
        g, x, weight, None, stride, padding, (1, 1), False, (0, 0), len(weight), wanted
    )
    return cast(Tensor, found[1 if of_kernels else 0])


def quicken(model: nn.Module) -> None:
    """Give these gradients to a model's depthwise convolutions that gain by them; their weights stay."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and type(module) in (nn.Conv2d, _same()) and _gains(module):
            kind: Any = type(module)
            module.__class__ = quick(kind)


@functools.cache
def quick(kind: Any) -> type[nn.Conv2d]:
    """Return the class of layers of a kind that have these gradients; messages name layers by the kind."""
    return type(kind.__name__, (kind,), {"forward": _forward})


def unquicken(module: nn.Module) -> bool:
    """Give a layer PyTorch's gradients again; return whether it had others."""
    kind: Any = type(module).__base__
    if not isinstance(module, nn.Conv2d) or type(module) is nn.Conv2d or type(module) is not quick(kind):
        return False
    module.__class__ = kind
    return True


def _gains(layer: nn.Conv2d) -> bool:
    """Tell whether a layer is a depthwise convolution at one of whose gradients oneDNN is slow."""
    return (
        layer.groups == layer.in_channels == layer.out_channels > 1
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
        and min(layer.kernel_size) >= FAST
        and (max(layer.kernel_size) > FAST or layer.stride != (1, 1))
    )


def _same() -> Any:
    """Return timm's convolution whose padding depends on the size of the maps; None if timm is not imported."""
    return getattr(sys.modules.get(TIMM), "Conv2dSame", None)


def _forward(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Convolve maps (B, C, H, W): with these gradients in training in bfloat16 on a CPU, elsewhere as PyTorch does."""
    plain = cast(type[nn.Conv2d], type(layer).__base__)
    trains = torch.is_grad_enabled() and (layer.weight.requires_grad or x.requires_grad)
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype  # of a CPU's convolutions
    if x.device.type != "cpu" or not trains or dtype != torch.bfloat16:
        return plain.forward(layer, x)
    weight, bias = layer.weight.bfloat16(), None if layer.bias is None else layer.bias.bfloat16()
    maps, stride, padding = x.bfloat16(), cast(Pair, layer.stride), cast(Pair, layer.padding)
    if plain is not nn.Conv2d:
        maps, padding = sys.modules[TIMM].pad_same(maps, layer.kernel_size, stride), (0, 0)
    return cast(Tensor, Depthwise.apply(maps, weight, bias, stride, padding))
