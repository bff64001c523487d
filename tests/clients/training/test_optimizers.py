"""Optimisers without torch's compiler: torch's own steps, bit for bit, and nothing imported for them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fedshift_clients.training import optimizers

PAIRS = [
    (optimizers.sgd, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 1e-3}),
    (optimizers.adam, torch.optim.Adam, {"weight_decay": 1e-3}),
    (optimizers.adamw, torch.optim.AdamW, {}),
]


def after_steps(make: Callable[..., torch.optim.Optimizer], options: dict[str, Any]) -> list[torch.Tensor]:
    """Return the weights after three steps, one of them of the first layer alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    optimizer = make(model.parameters(), lr=0.1, foreach=True, **options)
    for place in range(3):
        optimizer.zero_grad()
        model[2].requires_grad_(place != 1)
        model(torch.randn(6, 5)).square().sum().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS)
def test_steps_are_torchs_own(ours: Any, theirs: Any, options: dict[str, Any]) -> None:
    torch.testing.assert_close(after_steps(ours, options), after_steps(theirs, options), rtol=0, atol=0)
