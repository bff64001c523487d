"""MOON on a node: its references, what is kept between rounds, the projection head."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import C, Extra, Float, features_of, fit, image_set, new_client, same, shared
from support import batch as batch_of
from support import fedavg as fedavg_of
from torch import Tensor

from fedshift_clients.base import DomainClient
from fedshift_clients.methods.moon import PREVIOUS, PROJECTED, MoonClient, ProjectedClassifier
from fedshift_clients.models.networks import SplitModel, build
from fedshift_clients.training.batches import Batch
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.wire.names import DOMAINS, SERVER_ROUND

TRAIN: dict[str, Any] = {"images": ImageConfig(crop_padding=2), "epochs": 1, "batch_size": 4}


def client(params: dict[str, Any] | None = None, **options: Any) -> MoonClient:
    return new_client(MoonClient, params, train_set=image_set(12, classes=C), **TRAIN | options)


def fedavg(**options: Any) -> DomainClient:
    return fedavg_of(train_set=image_set(12, classes=C), **TRAIN | options)


def batch(first: int = 5) -> Batch:
    return batch_of(4, first, classes=C)


def other_weights(of: DomainClient) -> list[NDArray[Any]]:
    """What another server might send: the node's arrays, each a little off."""
    rng = np.random.default_rng(7)
    arrays = shared(of)
    return [a if a.dtype == np.int64 else a + rng.normal(0, 0.02, a.shape).astype(np.float32) for a in arrays]


def cosines(a: Float, b: Float) -> Float:
    norms = np.sqrt((a**2).sum(axis=1)) * np.sqrt((b**2).sum(axis=1))
    return np.asarray((a * b).sum(axis=1) / norms)


def contrast(z: Float, z_glob: Float, z_prev: Float, tau: float) -> float:
    """Eq. 3 as printed."""
    pull, push = np.exp(cosines(z, z_glob) / tau), np.exp(cosines(z, z_prev) / tau)
    return float(-np.log(pull / (pull + push)).mean())


def with_weights(model: str, names: list[str], arrays: list[NDArray[Any]], rest: dict[str, Tensor]) -> SplitModel:
    made = build(model, C, 99)
    made.load_state_dict(rest | {name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)})
    return made.eval()


# --- Eq. 3 and 4 -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "bn"), [("cnn", "average"), ("cnn_bn", "average"), ("cnn_bn", "local")])
@pytest.mark.parametrize("tau", [0.5, 0.1])
def test_contrast_against_numpy(model: str, bn: str, tau: float) -> None:
    made = client({"mu": 2.0, "tau": tau}, model=model, bn=bn)
    previous, _ = fit(made, 1)
    received = other_weights(made)
    made._load(received)
    made.start_round(2)
    private = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    glob, prev = (with_weights(model, made.shared_names, arrays, private) for arrays in (received, previous))
    with torch.no_grad():  # local training has moved the weights
        for p in made.model.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    made.model.train()
    plain = fedavg(model=model)
    plain.model.load_state_dict(made.model.state_dict())
    plain.model.train()
    for first in range(2):
        given = batch(first)
        terms = made.loss(given)
        z = features_of(plain.model, given.x)
        expected = 2 * contrast(z, features_of(glob, given.x), features_of(prev, given.x), tau)
        assert list(terms) == ["ce", "contrast"]
        assert float(terms["contrast"].detach()) == pytest.approx(expected, rel=1e-3)
        assert torch.equal(terms["ce"], plain.loss(given)["ce"])


def test_contrast_is_proportional_to_mu_and_leaves_cross_entropy() -> None:
    content = {}
    for mu in (1.0, 5.0):
        made = client({"mu": mu})
        made.memory = {PREVIOUS + n: a for n, a in zip(made.shared_names, other_weights(made), strict=True)}
        made.start_round(2)
        content[mu] = made.loss(batch())
    assert torch.equal(content[1.0]["ce"], content[5.0]["ce"])
    assert float(content[5.0]["contrast"].detach()) == pytest.approx(5 * float(content[1.0]["contrast"].detach()))


def test_references_stand_still_and_take_no_gradient() -> None:
    made = client({"mu": 5.0}, model="cnn_bn", epochs=2)
    fit(made, 1)
    made._load(other_weights(made))
    made.start_round(2)
    assert made._references is not None
    before = [{k: v.clone() for k, v in r.state_dict().items()} for r in made._references]
    made._train(2, made.phases(2))
    for reference, kept in zip(made._references, before, strict=True):
        assert not reference.training
        assert all(p.grad is None and not p.requires_grad for p in reference.parameters())
        assert all(torch.equal(tensor, kept[name]) for name, tensor in reference.state_dict().items())
    assert all(p.requires_grad for p in made.model.parameters())
    assert made.model.training


def test_gradient_of_the_contrast_is_there_from_the_second_round() -> None:
    made = client()
    fit(made, 1)
    made._load(other_weights(made))
    made.start_round(2)
    # At w = w^t the model's own representation is the global one; the previous one differs.
    weight = next(made.model.parameters())
    gradient = torch.autograd.grad(made.loss(batch())["contrast"], weight)[0]
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() > 0


# --- what is kept ----------------------------------------------------------------------------------


def test_the_constant_of_the_first_round_would_change_nothing() -> None:
    """With the global model as the previous one, the term is ln 2 and its gradient zero: the same weights."""
    made, plain = client(), fedavg()
    start = shared(made)
    made.memory = {PREVIOUS + name: array for name, array in zip(made.shared_names, start, strict=True)}
    (arrays, metrics), (wanted, _) = fit(made, 1, start), fit(plain, 1, start)
    assert metrics["loss/contrast"] == pytest.approx(np.log(2), rel=1e-5)
    for mine, theirs in zip(arrays, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)


def test_memory_is_the_model_as_training_left_it() -> None:
    made = client()
    arrays, _ = fit(made, 1)
    assert set(made.memory) == {PREVIOUS + name for name in made.shared_names}
    assert same([made.memory[PREVIOUS + name] for name in made.shared_names], arrays)
    assert sum(array.nbytes for array in made.memory.values()) == sum(array.nbytes for array in arrays)
    assert made.contribution() == {}
    assert made._references is None
    # The next round writes its own; scoring writes nothing.
    later, _ = fit(made, 2, other_weights(made))
    assert same([made.memory[PREVIOUS + name] for name in made.shared_names], later)
    made.evaluate(other_weights(made), {SERVER_ROUND: 2, DOMAINS: ["a"]})
    assert same([made.memory[PREVIOUS + name] for name in made.shared_names], later)


@pytest.mark.parametrize("bn", ["average", "local"])
def test_a_client_made_anew_goes_on_from_its_memory(bn: str) -> None:
    """Both engines make a client for every message; a node that misses rounds keeps its last model."""
    whole = client(model="cnn_bn", bn=bn)
    fit(whole, 1)
    anew = client(model="cnn_bn", bn=bn)
    anew.memory = {name: array.copy() for name, array in whole.memory.items()}
    start = other_weights(whole)
    (arrays, metrics), (wanted, expected) = fit(anew, 4, start), fit(whole, 4, start)
    assert same(arrays, wanted)
    assert metrics == expected
    assert "loss/contrast" in metrics


def test_each_node_has_a_previous_model_of_its_own() -> None:
    first, second = client(index=0), client(index=1)
    start = shared(first)
    fit(first, 1, start)
    fit(second, 1, start)
    name = PREVIOUS + first.shared_names[0]
    assert not np.array_equal(first.memory[name], second.memory[name])


def test_private_batchnorm_is_not_kept_twice() -> None:
    made = client(model="cnn_bn", bn="local")
    fit(made, 1)
    kept = {name.removeprefix(PREVIOUS) for name in made.memory if name.startswith(PREVIOUS)}
    assert kept == set(made.shared_names)
    assert not any("running" in name for name in kept)


def test_batchnorm_counts_only_the_batches_of_training() -> None:
    made = client(model="cnn_bn")
    for server_round in (1, 2):
        fit(made, server_round)
    counted = made.model.state_dict()["encoder.1.num_batches_tracked"]
    assert int(counted) == 2 * 3  # 12 images, batches of 4, one epoch, two rounds


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("projection", ["none", "mlp"])
def test_two_rounds_are_finite_and_repeat(precision: str, projection: str) -> None:
    runs = []
    for noise in range(2):
        torch.manual_seed(noise)
        made = client({"projection": projection}, precision=precision)
        start = shared(made)
        values = [fit(made, server_round, start) for server_round in (1, 2)]
        runs.append(values[-1])
    assert same(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]
    assert np.isfinite(list(runs[0][1].values())).all()
    assert runs[0][1]["loss/contrast"] > 0


# --- the projection head ---------------------------------------------------------------------------


def test_projection_is_part_of_the_model_and_leaves_the_backbone() -> None:
    plain, made = client(), client({"projection": "mlp"})
    extra = set(made.shared_names) - set(plain.shared_names)
    assert extra == {f"classifier.projection.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")}
    state, backbone = made.model.state_dict(), plain.model.state_dict()
    assert all(torch.equal(state[name], backbone[name]) for name in backbone if name.startswith("encoder."))
    assert state["classifier.weight"].shape == (C, PROJECTED)
    assert state["classifier.projection.2.weight"].shape == (PROJECTED, made.model.feature_dim)
    assert made.model.feature_dim == plain.model.feature_dim == 64


def test_projection_starts_from_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = client({"projection": "mlp"}).model.state_dict()
    torch.manual_seed(2)
    again, other = client({"projection": "mlp"}), client({"projection": "mlp"}, initial=1)
    name = "classifier.projection.0.weight"
    assert torch.equal(first[name], again.model.state_dict()[name])
    assert not torch.equal(first[name], other.model.state_dict()[name])


def test_with_a_projection_classifier_and_contrast_stand_on_it() -> None:
    made = client({"projection": "mlp", "mu": 1.0})
    fit(made, 1)
    previous = {name.removeprefix(PREVIOUS): array for name, array in made.memory.items()}
    made._load(other_weights(made))
    made.start_round(2)
    received = {name: tensor.numpy().copy() for name, tensor in made.model.state_dict().items()}
    with torch.no_grad():
        for p in made.model.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    own = {name: tensor.numpy().copy() for name, tensor in made.model.state_dict().items()}
    given = batch()
    z, z_glob, z_prev = (projected(state, given.x) for state in (own, received, previous))
    terms = made.loss(given)
    assert float(terms["contrast"].detach()) == pytest.approx(contrast(z, z_glob, z_prev, 0.5), rel=1e-3)
    logits = z @ own["classifier.weight"].T.astype(np.float64) + own["classifier.bias"]
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert float(terms["ce"].detach()) == pytest.approx(-log_p[range(4), given.y.numpy()].mean(), rel=1e-4)
    np.testing.assert_allclose(made.predict(given.x).detach().numpy(), logits, rtol=1e-3, atol=1e-4)


def projected(state: dict[str, NDArray[Any]], x: Tensor) -> Float:
    """z by hand: the backbone's features, FC, ReLU, FC."""
    backbone = build("cnn", C, 0)
    backbone.encoder.load_state_dict(
        {n.removeprefix("encoder."): torch.from_numpy(a) for n, a in state.items() if n.startswith("encoder.")}
    )
    h = features_of(backbone, x)
    w = {n: a.astype(np.float64) for n, a in state.items() if n.startswith("classifier.projection.")}
    first = h @ w["classifier.projection.0.weight"].T + w["classifier.projection.0.bias"]
    out = np.maximum(first, 0) @ w["classifier.projection.2.weight"].T + w["classifier.projection.2.bias"]
    return np.asarray(out)


def test_width_of_the_projection() -> None:
    head = ProjectedClassifier(16, C)
    assert head(torch.ones(2, 16)).shape == (2, C)
    assert head.projection(torch.ones(2, 16)).shape == (2, PROJECTED)


# --- with modules ----------------------------------------------------------------------------------


@pytest.mark.parametrize("projection", ["none", "mlp"])
def test_it_carries_modules(projection: str) -> None:
    made = client({"projection": projection}, modules=[Extra()])
    for server_round in (1, 2):
        _, metrics = fit(made, server_round, other_weights(made))
    assert {"loss/ce", "loss/contrast", "loss/extra"} <= set(metrics)
    assert not any(name.startswith(PREVIOUS + "extra.") for name in made.memory)
    assert np.isfinite(list(metrics.values())).all()
