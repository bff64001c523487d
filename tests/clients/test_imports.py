"""A node's process imports late: one fresh process shows it for all modules, as each imports torch."""

import subprocess
import sys

import pytest
from support import ROOT

SCRIPT = """
import sys, torch
from fedshift_clients.training import optimizers
for kind in (optimizers.sgd, optimizers.adam, optimizers.adamw):
    model = torch.nn.Linear(2, 2)
    one = kind(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    one.step()
    one.zero_grad()
print("compiler", "torch._dynamo" in sys.modules or "sympy" in sys.modules)

from fedshift_clients import base
from fedshift_clients.images.augment import Pipeline
from fedshift_clients.training.settings import ImageConfig
Pipeline(ImageConfig(crop_padding=4, flip=True, grayscale=0.2), torch.device("cpu"))
print("torchvision", "torchvision" in sys.modules)  # which takes 2 s to import
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, str]:
    """Return whether each thing was imported when the script came to its line."""
    ran = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return dict(line.split() for line in ran.stdout.splitlines())


def test_a_step_imports_no_compiler(imported: dict[str, str]) -> None:
    """Torch's own optimisers import it with their first step; if this fails, torch has changed and costs more again."""
    assert imported["compiler"] == "False"


def test_importing_and_building_a_client_leaves_torchvision_out(imported: dict[str, str]) -> None:
    assert imported["torchvision"] == "False"
