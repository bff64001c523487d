"""FDSE on a node: its layers against PyTorch's functions, the networks that it takes, its erasers."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from refusals import refused
from support import C, as64, batch, drawn, fit, image_set, new_client, same, shared, weights
from torch import nn
from torch.nn import functional as F

from fedshift_clients.methods.fdse import Erased, FDSEClient, Outcome, erased, layers_of, shift
from fedshift_clients.models.networks import SplitModel, build
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_strategies.methods.fdse import is_eraser

TRAIN: dict[str, Any] = {"images": ImageConfig(crop_padding=2), "epochs": 1, "batch_size": 8}
Float = NDArray[np.float64]


def client(params: dict[str, Any] | None = None, **options: Any) -> FDSEClient:
    return new_client(FDSEClient, params, **{"train_set": image_set(16, classes=C)} | TRAIN | options)


def moved(module: nn.Module) -> None:
    """Give each tensor numbers of its own, variances above 0."""
    for place, (name, tensor) in enumerate(module.state_dict().items()):
        if tensor.is_floating_point():
            tensor.copy_(0.3 * drawn(place, *tensor.shape) + (1.5 if "var" in name else 0.1))


# --- the layers ------------------------------------------------------------------------------------


def by_hand(layer: Erased, x: Float, stride: int, padding: int, training: bool) -> Float:
    """Return the layer's equations by PyTorch's functions in float64."""
    state = {name: tensor.detach().double() for name, tensor in layer.state_dict().items()}

    def normalised(maps: torch.Tensor, name: str) -> torch.Tensor:
        mean, var, weight, bias = (
            state[f"{name}.{part}"].clone() for part in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(maps, mean, var, weight, bias, training)

    x1 = F.conv2d(torch.from_numpy(x), state["dfe_conv.weight"], state["dfe_conv.bias"], stride, padding)
    x1, kernel = normalised(x1, "dse_bn"), state["dse_conv.weight"]
    x2 = F.conv2d(x1, kernel, None, 1, kernel.shape[2] // 2, groups=len(kernel))
    y = torch.cat([x1, x2], dim=1)[:, : layer.out_channels] + state["dfe_bias"][:, None, None]
    return (y if layer.dfe_bn is None else normalised(y, "dfe_bn")).numpy()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("width", "own_norm"), [(6, True), (5, True), (4, False)])
def test_a_convolution_against_numpy(width: int, own_norm: bool, training: bool) -> None:
    norm = None if own_norm else nn.BatchNorm2d(width)
    layer = Erased(nn.Conv2d(3, width, 3, stride=2, padding=1), norm).train(training)
    moved(layer)
    x = drawn(1, 4, 3, 7, 7)
    wanted = by_hand(layer, as64(x), 2, 1, training)
    layer.watched = True
    result = layer(x)
    np.testing.assert_allclose(as64(result), wanted, rtol=1e-3, atol=1e-5)
    assert (layer.seen is not None) == training
    flat = Erased(nn.Linear(7, width), None).train(training)  # is a convolution of one pixel
    moved(flat)
    wanted_of_flat = by_hand(flat, as64(drawn(1, 4, 7))[..., None, None], 1, 0, training)[..., 0, 0]
    np.testing.assert_allclose(as64(flat(drawn(1, 4, 7))), wanted_of_flat, rtol=1e-3, atol=1e-5)
    if layer.seen is not None and not own_norm:
        np.testing.assert_allclose(as64(layer.seen[0]), wanted.mean(axis=(0, 2, 3)), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(as64(layer.seen[1]), wanted.var(axis=(0, 2, 3)), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "number", "own"), [("cnn", 3, 3), ("cnn_bn", 3, 1), ("cnn3", 4, 4), ("resnet10", 12, 0)]
)
def test_our_networks_keep_their_shape_and_their_batchnorm(model: str, number: int, own: int) -> None:
    made, plain = client(model=model).model, build(model, C, 0)
    layers = dict(layers_of(made))
    assert len(layers) == number
    assert sum(layer.dfe_bn is not None for layer in layers.values()) == own
    assert type(made) is SplitModel
    names = {name for name, module in plain.named_modules() if isinstance(module, nn.BatchNorm2d)}
    assert names <= {name for name, module in made.named_modules() if isinstance(module, nn.BatchNorm2d)}
    z, logits = made.eval()(drawn(0, 2, 3, 32, 32))
    assert (tuple(z.shape), tuple(logits.shape)) == ((2, plain.feature_dim), (2, C))
    assert torch.equal(made.classifier.weight, plain.classifier.weight)
    for layer in layers.values():  # the BatchNorm behind a layer is the one that it is held to
        assert layer.norm.num_features == layer.out_channels
        assert any(layer.norm is module for module in made.modules())


class _Odd(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.LayerNorm(4), "layer: LayerNorm"),
        (nn.Conv2d(4, 4, 3, groups=2), "layer: Conv2d of 2 groups"),
        (nn.MultiheadAttention(4, 2), "layer: MultiheadAttention"),
        (nn.ReLU(), "no convolution or linear layer"),
    ],
)
def test_other_networks_are_refused_by_name(layer: nn.Module, reason: str) -> None:
    with refused(ConfigError, reason, "mine"):
        erased(SplitModel(_Odd(layer), 4, C), "mine")


# --- on a node -------------------------------------------------------------------------------------


def test_what_stays_and_what_both_sides_call_erasers() -> None:
    made = client(model="cnn_bn")
    assert set(weights(made)) - set(made.shared_names) == {
        f"encoder.{i}.dse_bn.{part}"
        for i in (0, 4, 9)
        for part in ("running_mean", "running_var", "num_batches_tracked")
    }
    assert sum(map(is_eraser, made.shared_names)) == 9


def test_own_erasers_take_the_place_of_the_shared_ones_before_training_and_scoring() -> None:
    made = client()
    own = {name: np.full(weights(made)[name].shape, 0.25, np.float32) for name in made.shared_names if is_eraser(name)}
    made.knowledge = own
    given = shared(made)
    made.take(given)
    after = weights(made)
    assert all(np.array_equal(after[name], own.get(name, a)) for name, a in zip(made.shared_names, given, strict=True))


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
    made = client({"lambda_kl": 0.3, "beta": 0.2}, model=model)
    moved(made.model)
    state = weights(made)
    made.start_round(2)
    made.model.train()
    given: list[Float] = []
    norms = {id(layer.norm): name for name, layer in layers_of(made.model)}
    handles = [
        module.register_forward_pre_hook(lambda m, x: given.append(as64(x[0])))
        for module in made.model.modules() if id(module) in norms
    ]  # fmt: skip
    terms = made.loss(batch(6))
    for handle in handles:
        handle.remove()
    paths, outcomes = {id(module): name for name, module in made.model.named_modules()}, []
    for y, (_, layer) in zip(given, layers_of(made.model), strict=True):
        axes = tuple(axis for axis in range(y.ndim) if axis != 1)
        sent = [state[f"{paths[id(layer.norm)]}.running_{part}"] for part in ("mean", "var")]
        moments = [torch.as_tensor(part) for part in (y.mean(axis=axes), y.var(axis=axes), *sent)]
        outcomes.append(Outcome(*moments, layer.norm.eps, 0.1))
    assert list(terms) == ["ce", "kl"]
    assert float(terms["kl"].detach()) == pytest.approx(0.3 * float(shift(outcomes, 0.2)), rel=1e-3)


@pytest.mark.parametrize("kl", ["gaussian", "released"])
def test_the_term_is_there_from_round_two_and_changes_the_weights(kl: str) -> None:
    made, without = client({"kl": kl, "lambda_kl": 0.05}), client({"lambda_kl": 0})
    start = shared(made)
    first, plain = fit(made, 1, start), fit(without, 1, start)
    assert same(first[0], plain[0])
    assert "loss/kl" not in first[1]
    second, plain = fit(made, 2, first[0]), fit(without, 2, first[0])
    assert "loss/kl" in second[1] and "loss/kl" not in plain[1]
    assert not same(second[0], plain[0])


def test_layers_without_a_variance_have_no_part_in_the_term() -> None:
    """One image: a linear layer has one value for each channel; the convolutions' maps have many."""
    made = client(train_set=image_set(1, classes=C), clip=10.0)
    arrays, _ = fit(made)
    assert fit(made, 2, arrays)[1]["loss/kl"] < 100
    made.start_round(2)
    made.model.train()
    made.model(batch(1).x)
    for _, layer in layers_of(made.model):
        assert (layer.seen is None) == layer.is_flat
