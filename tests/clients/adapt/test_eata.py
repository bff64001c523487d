"""EATA against numbers that are worked out slowly: Fisher values, which samples count, a step."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from refusals import refused
from slow_terms import cosines, cross_entropy, softmax
from support import Float, as64, numerical_gradient
from torch import Tensor, nn

from fedshift_clients.adapt import tent
from fedshift_clients.adapt.eata import EATA
from fedshift_clients.adapt.params import EATAParams, TentParams
from fedshift_clients.models import networks
from fedshift_clients.training import statistics
from fedshift_core.errors import ConfigError

CLASSES, B = 4, 6


class Small(nn.Module):
    """A linear layer, BatchNorm and a linear layer, in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(torch.tanh(self.norm(self.first(x))))
        return logits


def small() -> Small:
    return networks.initialised(3, "eata", Small).double().eval()


def images(seed: int, b: int = B) -> Tensor:
    return torch.randn(b, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3


def slow_logits(model: Small, x: Tensor, at: Float) -> Float:
    """Return what the network says with other scales and shifts."""
    h, (scale, shift) = as64(model.first(x)), np.split(at, 2)
    h = np.tanh(scale * (h - h.mean(0)) / np.sqrt(h.var(0) + model.norm.eps) + shift)
    return np.asarray(h @ as64(model.last.weight).T + as64(model.last.bias))


def entropies(logits: Float) -> Float:
    p = softmax(logits)
    return np.asarray(-(p * np.log(p)).sum(1))


def theta(model: Small) -> Float:
    return np.concatenate([as64(model.norm.weight), as64(model.norm.bias)])


def test_fisher_values_are_mean_squares_of_slopes_by_batch() -> None:
    model, batches, squares = small(), [images(0), images(1, 4), images(2)], []
    for x in batches:
        taken = slow_logits(model, x, theta(model)).argmax(axis=1)

        def loss(at: Float, x: Tensor = x, taken: Any = taken) -> float:
            return cross_entropy(slow_logits(model, x, at), taken)

        squares.append(numerical_gradient(loss, torch.from_numpy(theta(model)), 1e-6) ** 2)
    result = EATA(model, model, EATAParams(), batches).fisher
    np.testing.assert_allclose(np.concatenate([as64(f) for f in result]), np.mean(squares, axis=0), rtol=1e-5)


@pytest.mark.parametrize("margin", [None, 0.8])
@pytest.mark.parametrize("alpha", [0.0, 5.0])
def test_three_batches_against_the_equations(alpha: float, margin: float | None) -> None:
    """Samples are chosen by Eqs 3 to 5; slopes are taken by differences; SGD with momentum by hand."""
    params = EATAParams(lr=0.05, momentum=0.9, margin=margin, redundancy=0.6, fisher_alpha=alpha)
    highest = 0.4 * math.log(CLASSES) if margin is None else margin  # E_0
    model, plain = small(), small()
    with torch.no_grad():
        for made in (model, plain):
            made.last.weight.mul_(8)  # else no prediction is sure
    clean, began, at, moved = [images(9)], theta(plain), theta(plain), np.zeros(6)
    adapted, mean = EATA(model, model, params, clean), np.zeros(CLASSES)
    fisher = np.concatenate([as64(f) for f in adapted.fisher])
    for number in range(3):
        x = images(20 + number, 12)
        logits = slow_logits(model, x, at)
        np.testing.assert_allclose(adapted(x).numpy(), logits, rtol=1e-5, atol=1e-6)
        p, unsure = softmax(logits), entropies(logits)
        sure = unsure < highest
        counts = sure & (abs(cosines(p, mean[None])[:, 0]) < params.redundancy)
        assert sure.sum() < 12, "some are not sure"
        assert 2 <= counts.sum() < sure.sum() + (number == 0), "some count, some are like those before"
        mean = 0.9 * mean + 0.1 * p[counts].mean(0) if number else p[counts].mean(0)
        weights = np.exp(highest - unsure)

        def loss(point: Float, x: Tensor = x, weights: Float = weights, counts: Any = counts) -> float:
            own = entropies(slow_logits(model, x, point))
            return float((weights * own)[counts].mean() + alpha * (fisher * (point - began) ** 2).sum())

        moved = 0.9 * moved + numerical_gradient(loss, torch.from_numpy(at), 1e-6)
        at = at - 0.05 * moved
        np.testing.assert_allclose(theta(model), at, rtol=1e-5, atol=1e-7)


# --- Tent, against numbers worked out slowly ----------------------------------------------------------


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
    assert torch.equal(tent.Tent(model, model, TentParams(steps=3))(images), expected)
