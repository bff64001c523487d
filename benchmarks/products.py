"""What a training step cannot do without: its convolutions and matrix products, alone, by the calls that torch makes.

Neither casts nor norms, activations, the optimiser or the data are in it: no loop over the same kernels is faster.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

SIDE = 1024  # of the square matrices by which a machine's rate is measured


@dataclass(frozen=True)
class Bound:
    """Of one step.

    Attributes:
        run: Does the products of its forward and backward pass.
        flops: How many operations they are, two for each multiply-add.
    """

    run: Callable[[], None]
    flops: int


def of_step(model: nn.Module, x: Tensor, dtype: torch.dtype, layout: torch.memory_format) -> Bound:
    """Return the products of a model's step on a batch (B, 3, H, W), in a number format and layout."""
    calls: list[Callable[[], None]] = []
    hooks = [
        module.register_forward_hook(lambda m, args, out: calls.append(_call(m, args[0], out, dtype, layout, x)))
        for module in model.modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()

    def run() -> None:
        for call in calls:
            call()

    with FlopCounterMode(display=False) as counter:
        run()
    return Bound(run, counter.get_total_flops())


def _call(
    module: nn.Module, given: Tensor, made: Tensor, dtype: torch.dtype, layout: torch.memory_format, images: Tensor
) -> Callable[[], None]:
    first = given.data_ptr() == images.data_ptr()  # nothing goes back into the images
    if isinstance(module, nn.Linear):
        x, g, w = (torch.randn_like(like).to(dtype) for like in (given, made, module.weight))

        def multiply() -> None:
            F.linear(x, w)
            g.t() @ x
            g @ w

        return multiply
    assert isinstance(module, nn.Conv2d)
    x, g, w = (
        torch.randn_like(like).to(dtype).contiguous(memory_format=layout) for like in (given, made, module.weight)
    )
    about = module.stride, module.padding, module.dilation
    groups = module.groups

    def convolve() -> None:
        F.conv2d(x, w, None, *about, groups)
        torch.ops.aten.convolution_backward(g, x, w, None, *about, False, [0, 0], groups, [not first, True, False])

    return convolve


def square(dtype: torch.dtype, device: torch.device) -> Bound:
    """Return a product of square matrices: its rate is about the machine's highest in this number format."""
    a, b = (torch.randn(SIDE, SIDE, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return Bound(lambda: (torch.mm(a, b, out=out), None)[1], 2 * SIDE**3)
