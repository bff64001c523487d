"""Optimisers without torch's compiler: torch's own steps, bit for bit, and nothing imported for them."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import ROOT
from torch import nn

from clients.training import optimizers

PAIRS = [
    pytest.param(optimizers.sgd, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 1e-3}, id="sgd"),
    pytest.param(optimizers.adam, torch.optim.Adam, {"weight_decay": 1e-3}, id="adam"),
    pytest.param(optimizers.adamw, torch.optim.AdamW, {}, id="adamw"),
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
    for one, other in zip(after_steps(ours, options), after_steps(theirs, options), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_a_step_keeps_no_graph(kind: str) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = getattr(optimizers, kind)([weight], lr=0.1)
    weight.square().sum().backward()
    optimizer.step()
    assert weight.is_leaf
    assert weight.grad is not None
    assert not torch.equal(weight.detach(), torch.ones(2))


def test_a_step_imports_no_compiler() -> None:
    """Torch's own optimisers import it with their first step; if this fails, torch has changed and costs more again."""
    script = (
        "import sys, torch; from clients.training import optimizers\n"
        "for kind in (optimizers.sgd, optimizers.adam, optimizers.adamw):\n"
        "    model = torch.nn.Linear(2, 2); one = kind(model.parameters(), lr=0.1)\n"
        "    model(torch.ones(1, 2)).sum().backward(); one.step(); one.zero_grad()\n"
        "print('torch._dynamo' in sys.modules, 'sympy' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]
