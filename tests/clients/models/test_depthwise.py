"""Gradients of depthwise convolutions: as PyTorch's own, and only where they are wanted."""

import copy
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import drawn
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift_clients.models import depthwise
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training import per_image


@settings(max_examples=40, deadline=None)
@given(
    kernel=st.tuples(st.integers(3, 8), st.integers(3, 8)), stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)), more=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    last=st.booleans(), seed=st.integers(0, 100),
)  # fmt: skip
def test_gradients_are_those_of_pytorchs_own(
    kernel: tuple[int, int], stride: tuple[int, int], padding: Any, more: tuple[int, int], last: bool, seed: int
) -> None:
    size = [max(k + m - 2 * p, 1) for k, m, p in zip(kernel, more, padding, strict=True)]
    padding = tuple(max(p, -(-(k - s) // 2)) for k, s, p in zip(kernel, size, padding, strict=True))
    x, weight, bias = drawn(seed, 2, 3, *size), drawn(seed + 1, 3, 1, *kernel), drawn(seed + 2, 3)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    leaves = [part.double().requires_grad_() for part in (x, weight, bias)]
    made = depthwise.Depthwise.apply(*leaves, stride, padding)
    theirs = F.conv2d(*leaves, stride, padding, groups=3)
    assert torch.equal(made, theirs)
    ours, wanted = (torch.autograd.grad(out, leaves, drawn(seed + 3, *out.shape).double()) for out in (made, theirs))
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-5)  # of maps, with a stride, in float32


class Net(nn.Sequential):
    """A network with all kinds of layers that could be taken for one another."""

    def __init__(self) -> None:
        six, twelve = {"groups": 6}, {"groups": 12}
        super().__init__(
            nn.Conv2d(6, 6, 5, padding=2, **six), nn.Conv2d(6, 6, 3, 2, 1, bias=False, **six),  # large, and strided
            nn.Conv2d(6, 6, 3, padding=1, **six), nn.Conv2d(6, 6, (1, 7), padding=(0, 3), **six),
            nn.Conv2d(6, 12, 5, padding=2, **six), nn.Conv2d(12, 12, 5, padding=4, dilation=2, **twelve),
            nn.Conv2d(12, 12, 5, padding=2, padding_mode="reflect", **twelve),
            nn.Conv2d(12, 12, 5, padding="same", **twelve), nn.Conv2d(12, 6, 5, padding=2),
        )  # fmt: skip


def trained(model: nn.Module, *, bf16: bool) -> list[Tensor]:
    """Return the gradients of a step."""
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        made = model(drawn(0, 4, 6, 12, 12))
    made.float().square().mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def test_only_layers_that_gain_are_changed_and_only_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Mock(side_effect=depthwise.Depthwise.apply)
    monkeypatch.setattr(depthwise.Depthwise, "apply", counted)
    plain = Net()
    ours = copy.deepcopy(plain)
    depthwise.quicken(ours)
    assert [type(layer) is depthwise.quick(nn.Conv2d) for layer in ours] == [True] * 2 + [False] * 7
    torch.testing.assert_close(trained(ours, bf16=False), trained(plain, bf16=False), rtol=0, atol=0)
    assert not counted.called
    for one, other in zip(trained(plain, bf16=True), trained(ours, bf16=True), strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.02 * float(one.abs().max()))
    assert [call.args[0].dtype for call in counted.call_args_list] == [torch.bfloat16] * 2


def test_dp_sgd_finds_the_gradients_of_single_images() -> None:
    """Its own check compares norms with those of one image at a time."""
    pytest.importorskip("opacus", reason="the extra fedshift[dp] is not installed")
    encoder = nn.Sequential(nn.Conv2d(6, 6, 5, padding=2, groups=6), nn.ReLU(), nn.Flatten())
    depthwise.quicken(encoder)
    per_image.check(SplitModel(encoder, 6 * 64, 3), drawn(0, 4, 6, 8, 8), freeze_batchnorm=False)
    assert type(encoder[0]) is depthwise.quick(nn.Conv2d)
