"""FDSE on a node: its layers against PyTorch's functions, the networks that it takes, its erasers."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from refusals import refused
from slow_terms import check
from support import C, as64, batch, changed, drawn, fit, image_set, new_client, same, shared, weights
from torch import nn
from torch.nn import functional as F

from fedshift_clients.methods.fdse import (
    Erased,
    FDSEClient,
    Outcome,
    erased,
    layers_of,
    shift,
    shift_as_released,
)
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_strategies.methods.fdse import is_eraser

Float = NDArray[np.float64]


client = partial(
    new_client, FDSEClient, train_set=image_set(16, classes=C), images=ImageConfig(crop_padding=2), epochs=1,
    batch_size=8,
)  # fmt: skip


def moved(module: nn.Module) -> None:
    """Give each tensor numbers of its own, variances above 0."""
    for place, (name, tensor) in enumerate(module.state_dict().items()):
        if tensor.is_floating_point():
            tensor.copy_(0.3 * drawn(place, *tensor.shape) + (1.5 if "var" in name else 0.1))


# --- the layers ------------------------------------------------------------------------------------


def by_hand(layer: Erased, x: torch.Tensor, stride: int, padding: int) -> Float:
    """Return the layer's equations by PyTorch's functions in float64."""
    state = {name: tensor.detach().double().clone() for name, tensor in layer.state_dict().items()}

    def normalised(maps: torch.Tensor, name: str) -> torch.Tensor:
        parts = (state[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(maps, *parts, layer.training)

    x1 = F.conv2d(x.double(), state["dfe_conv.weight"], state["dfe_conv.bias"], stride, padding)
    x1, kernel = normalised(x1, "dse_bn"), state["dse_conv.weight"]
    x2 = F.conv2d(x1, kernel, None, 1, kernel.shape[2] // 2, groups=len(kernel))
    y = torch.cat([x1, x2], dim=1)[:, : layer.out_channels] + state["dfe_bias"][:, None, None]
    return (y if layer.dfe_bn is None else normalised(y, "dfe_bn")).numpy()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("width", "own_norm"), [(6, True), (5, True), (4, False)])
def test_a_layer_against_its_equations(width: int, own_norm: bool, training: bool) -> None:
    layer = Erased(nn.Conv2d(3, width, 3, stride=2, padding=1), None if own_norm else nn.BatchNorm2d(width))
    flat = Erased(nn.Linear(7, width), None)  # is a convolution of one pixel
    for made in (layer, flat):
        moved(made.train(training))
    x, rows = drawn(1, 4, 3, 7, 7), drawn(1, 4, 7)
    wanted, of_rows = by_hand(layer, x, 2, 1), by_hand(flat, rows[..., None, None], 1, 0)[..., 0, 0]
    layer.watched = True
    close = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5)
    close(as64(layer(x)), wanted)
    close(as64(flat(rows)), of_rows)
    assert (layer.seen is not None) == training
    if layer.seen is not None and not own_norm:
        close(as64(layer.seen[0]), wanted.mean(axis=(0, 2, 3)))
        close(as64(layer.seen[1]), wanted.var(axis=(0, 2, 3)))


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.LayerNorm(4), "0: LayerNorm"), (nn.Conv2d(4, 4, 3, groups=2), "0: Conv2d of 2 groups"),
        (nn.MultiheadAttention(4, 2), "0: MultiheadAttention"), (nn.ReLU(), "no convolution or linear layer"),
    ],
)  # fmt: skip
def test_other_networks_are_refused_by_name(layer: nn.Module, reason: str) -> None:
    with refused(ConfigError, reason, "mine"):
        erased(SplitModel(nn.Sequential(layer), 4, C), "mine")


# --- on a node -------------------------------------------------------------------------------------


def test_own_erasers_take_the_place_of_the_shared_ones_before_training_and_scoring() -> None:
    made, before = client(), weights(client())
    made.knowledge = {name: np.full_like(before[name], 0.25) for name in made.shared_names if is_eraser(name)}
    made.take(shared(made))
    assert not changed(weights(made), before | dict(made.knowledge))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("encoder.0.dfe_bias", (32,)), ("encoder.0.dse_bn.weight", (3,)), ("encoder.9.dse_bn.weight", (3,))],
)
def test_a_server_cannot_put_other_things_there(name: str, shape: tuple[int, ...]) -> None:
    made = client()
    made.knowledge = {name: np.zeros(shape, np.float32)}
    with refused(FedShiftError, name):
        made.take(shared(made))


@pytest.mark.parametrize("model", ["cnn", "resnet10"])
def test_the_term_is_over_what_the_layers_gave_against_the_global_statistics(model: str) -> None:
    made, given = client({"lambda_kl": 0.3, "beta": 0.2}, model=model), list[Float]()
    moved(made.model)
    made.start_round(2)
    layers = layers_of(made.model.train())
    sent = [(layer.norm.running_mean.clone(), layer.norm.running_var.clone()) for layer in layers]
    handles = [layer.norm.register_forward_pre_hook(lambda m, x: given.append(as64(x[0]))) for layer in layers]
    terms, outcomes = made.loss(batch(6)), []
    for handle in handles:
        handle.remove()
    for y, theirs, layer in zip(given, sent, layers, strict=True):
        axes = tuple(axis for axis in range(y.ndim) if axis != 1)
        own = torch.as_tensor(y.mean(axis=axes)), torch.as_tensor(y.var(axis=axes))
        outcomes.append(Outcome(*own, *theirs, layer.norm.eps, 0.1))
    assert list(terms) == ["ce", "kl"]
    assert float(terms["kl"].detach()) == pytest.approx(0.3 * float(shift(outcomes, 0.2)), rel=1e-3)


@pytest.mark.parametrize("kl", ["gaussian", "released"])
def test_the_term_is_there_from_round_two_and_changes_the_weights(kl: str) -> None:
    made, without = client({"kl": kl, "lambda_kl": 0.05}), client({"lambda_kl": 0})
    given = shared(made)
    for server_round in (1, 2):
        (arrays, metrics), (plain, others) = (fit(one, server_round, given) for one in (made, without))
        assert same(arrays, plain) is ("loss/kl" not in metrics) is (server_round == 1)
        assert "loss/kl" not in others
        given = arrays


# --- FDSE's term --------------------------------------------------------------------------------------


def outcomes(seed: int, layers: int = 3) -> list[Outcome]:
    def layer(at: int, c: int) -> Outcome:
        means, variances = drawn(at, 2, c), drawn(at + 100, 2, c).abs() + 0.2
        return Outcome(means[0], variances[0], means[1], variances[1], 1e-5, 0.1)

    return [layer(seed + place, 4 + place) for place in range(layers)]


def weighed(each: list[Any], beta: float) -> Any:
    return np.average(each, weights=np.exp(beta * np.arange(len(each))))


def slow(given: list[Outcome], beta: float) -> Any:
    each = []
    for at in given:
        f, s, g, v = (
            np.asarray(part, float) for part in (at.mean, at.var + 1e-5, at.global_mean, at.global_var + 1e-5)
        )
        each.append(0.5 * (np.log(s / v) + (v + (g - f) ** 2) / s - 1).mean())
    return weighed(each, beta)


def test_what_the_released_code_computes_against_numpy() -> None:
    running, fn, vn = None, None, None
    for seed in (0, 7, 14):
        each = []
        for at in outcomes(seed):
            mean, g, v = as64(at.mean), as64(at.global_mean), as64(at.global_var)
            fn = mean.mean() if fn is None else 0.9 * fn + 0.1 * mean.mean()
            vn = mean.var(ddof=1) if vn is None else 0.9 * vn + 0.1 * mean.var(ddof=1)
            each.append(((g**2 - fn**2) / (2 * vn) + 0.5 * (np.log(vn / (v + 1e-8)) + v / (vn + 1e-8))).mean())
        found, running = shift_as_released(outcomes(seed), 0.05, running)
        assert float(found) == pytest.approx(weighed(each, 0.05), rel=1e-4)


@pytest.mark.parametrize("beta", [0.0, 0.05, 2.0])
@pytest.mark.parametrize("name", ["mean", "var"])  # of the batch
def test_shift_and_its_gradient_against_numpy(beta: float, name: str) -> None:
    def of(term: Any) -> Any:
        first, *others = outcomes(3)
        return lambda x: term([replace(first, **{name: torch.as_tensor(x)}), *others], beta)

    check(of(shift), of(slow), getattr(outcomes(3)[0], name))
