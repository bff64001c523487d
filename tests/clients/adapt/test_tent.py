"""Tent against numbers that are worked out slowly, and what it leaves alone."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from refusals import refused
from torch import Tensor, nn

from fedshift_clients.adapt import tent
from fedshift_clients.models import freezing, networks
from fedshift_clients.training import statistics
from fedshift_core.errors import ConfigError


def entropy_by_hand(logits: NDArray[np.float64]) -> list[float]:
    collected = []
    for row in logits:
        p = [float(np.exp(one)) / sum(float(np.exp(other)) for other in row) for one in row]
        collected.append(-sum(one * float(np.log(one)) for one in p))
    return collected


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

    def mean_entropy() -> float:
        with torch.no_grad(), statistics.by_batch(model):
            return float(np.mean(entropy_by_hand(model(images).numpy())))

    with torch.no_grad(), statistics.by_batch(model):
        predicted = model(images)
    slopes: dict[tuple[str, int], float] = {}
    tuned = {f"{name}.{kind}" for name in statistics.layers(model) for kind in ("weight", "bias")}
    for name in tuned:
        for place in range(4):
            weight, values = model.get_parameter(name), []
            for shift in (1e-5, -1e-5):
                with torch.no_grad():
                    weight[place] += shift
                values.append(mean_entropy())
                with torch.no_grad():
                    weight[place] -= shift
            slopes[name, place] = (values[0] - values[1]) / 2e-5
    adapted = tent.Tent(model, model)
    logits = adapted(images)
    assert torch.allclose(logits, predicted)  # by the pass before the step, with the batch's own statistics
    after = model.state_dict()
    assert {name for name in after if not torch.equal(after[name], before[name])} == tuned
    for (name, place), slope in slopes.items():
        assert abs(slope) > 1e-7
        assert float(after[name][place] - before[name][place]) == pytest.approx(-1e-3 * np.sign(slope), rel=1e-2)


@pytest.mark.parametrize("groups", [0, 2])
def test_a_network_without_batchnorm_is_refused(groups: int) -> None:
    model = (
        networks.build("cnn", 3, seed=1) if groups == 0 else networks.with_group_norm(networks.build("cnn_bn", 3, 1), 2)
    )
    with refused(ConfigError, "BatchNorm"):
        tent.Tent(model, model)


def test_more_steps_are_steps_of_one_and_the_last_pass_predicts() -> None:
    model, images = model_and_images()
    once = tent.Tent(model, model)
    expected = [once(images) for _ in range(3)][-1]
    model, images = model_and_images()
    assert torch.equal(tent.Tent(model, model, steps=3)(images), expected)


def test_what_is_frozen_stays_as_it_is() -> None:
    model = networks.build("cnn_bn", 3, seed=1)
    freezing.freeze(model, "stages:1", "cnn_bn")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    tent.Tent(model, lambda given: model(given)[1])(x)
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"encoder.5.weight", "encoder.5.bias"}
