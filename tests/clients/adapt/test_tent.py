"""Tent against numbers that are worked out slowly, and what it leaves alone."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from refusals import refused
from slow_terms import softmax
from support import numerical_gradient
from torch import Tensor, nn

from fedshift_clients.adapt import tent
from fedshift_clients.models import networks
from fedshift_clients.training import statistics
from fedshift_core.errors import ConfigError


def model_and_images() -> tuple[nn.Module, Tensor]:
    rng = torch.Generator().manual_seed(2)
    model = networks.initialised(
        1, "tent",
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Flatten(),
            nn.Linear(64, 3),
        ),
    )  # fmt: skip
    with torch.no_grad():
        for norm in statistics.layers(model).values():  # not the initial 1 and 0
            norm.weight.uniform_(0.5, 1.5, generator=rng)
            norm.bias.uniform_(-0.2, 0.2, generator=rng)
            assert norm.running_mean is not None
            norm.running_mean.fill_(5.0)
    return model.double().eval(), torch.rand(6, 3, 8, 8, generator=rng, dtype=torch.float64)


def test_a_step_is_that_of_adam_down_the_entropy_and_moves_batchnorm_alone() -> None:
    """Adam's first step is the sign of the gradient times the rate; the gradient is taken by differences."""
    model, images = model_and_images()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tuned = [f"{name}.{kind}" for name in statistics.layers(model) for kind in ("weight", "bias")]

    def logits(at: NDArray[np.float64]) -> Tensor:
        changed = dict(zip(tuned, torch.from_numpy(at), strict=True))
        with torch.no_grad(), statistics.by_batch(model):
            return torch.func.functional_call(model, changed, images)  # type: ignore[no-any-return]

    def mean_entropy(at: NDArray[np.float64]) -> float:
        p = softmax(logits(at).numpy())
        return -float((p * np.log(p)).sum(1).mean())

    begun = torch.stack([before[name] for name in tuned])
    predicted, slopes = logits(begun.numpy()), numerical_gradient(mean_entropy, begun)
    found = tent.Tent(model, model)(images)
    torch.testing.assert_close(found, predicted)  # by the pass before the step, with the batch's own statistics
    after = model.state_dict()
    assert {name for name in after if not torch.equal(after[name], before[name])} == set(tuned)
    assert abs(slopes).min() > 1e-7
    moved = torch.stack([after[name] for name in tuned]) - begun
    np.testing.assert_allclose(moved, -1e-3 * np.sign(slopes), rtol=1e-2)


@pytest.mark.parametrize("name", ["cnn", "cnn_bn"])
def test_a_network_without_batchnorm_is_refused(name: str) -> None:
    model = networks.with_group_norm(networks.build(name, 3, seed=1), 2)
    with refused(ConfigError, "BatchNorm"):
        tent.Tent(model, model)


def test_more_steps_are_steps_of_one_and_the_last_pass_predicts() -> None:
    model, images = model_and_images()
    once = tent.Tent(model, model)
    expected = [once(images) for _ in range(3)][-1]
    model, images = model_and_images()
    assert torch.equal(tent.Tent(model, model, steps=3)(images), expected)
