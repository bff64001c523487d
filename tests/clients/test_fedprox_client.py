"""FedProx on a node: Eq. 2 against NumPy, what it holds and what it leaves free."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn

from clients.base import ClientSetup, DomainClient
from clients.fedprox import FedProxClient, FedProxParams
from clients.models.networks import Blueprint, SplitModel, batchnorm_names, build
from clients.training.batches import Batch
from clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from datasets.base import ImageSet
from fedshift_wire.names import SERVER_ROUND, Params

C, N = 4, 12


def image_set(n: int = N) -> ImageSet:
    x = np.random.default_rng(0).integers(0, 256, size=(n, 32, 32, 3), dtype=np.uint8)
    return ImageSet(x, np.arange(n, dtype=np.int64) % C)


def setup(model: str, bn: str, **train: Any) -> ClientSetup:
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 4, "lr": 0.05, "precision": "float32"}
    return ClientSetup(
        seed=11, index=3, device=torch.device("cpu"),
        model=ModelConfig.model_validate({"name": model, "bn": bn}),
        train=TrainConfig(**settings | train), images=ImageConfig(crop_padding=2),
    )  # fmt: skip


def client(
    params: dict[str, Any] | None = None, *, kind: Any = FedProxClient, model: str = "cnn", bn: str = "average",
    plugin: Any = None, **train: Any,
) -> DomainClient:  # fmt: skip
    configured, images = setup(model, bn, **train), image_set()
    built = build(model, C, 0)
    if plugin is not None:
        built = plugin.wrap(built, Blueprint(configured.model, C, 32, 0))
    made: DomainClient = kind(
        built, configured, FedProxParams(**params or {}) if kind is FedProxClient else Params(), images,
        lambda domain: images, plugin=plugin,
    )  # fmt: skip
    return made


def shared(of: DomainClient) -> list[NDArray[Any]]:
    state = of.model.state_dict()
    return [state[name].numpy().copy() for name in of.shared_names]


def fit(of: DomainClient, server_round: int = 1) -> tuple[list[NDArray[Any]], dict[str, Any]]:
    arrays, _, metrics = of.fit(shared(of), {SERVER_ROUND: server_round})
    return arrays, metrics


def same(a: list[NDArray[Any]], b: list[NDArray[Any]]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def batch(n: int = 4) -> Batch:
    x = torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    return Batch(x, torch.arange(n) % C, 0)


def moved(of: DomainClient, by: float = 0.01) -> None:
    """Move every parameter and every floating buffer, each by a number of its own."""
    with torch.no_grad():
        for i, tensor in enumerate(of.model.state_dict().values()):
            if tensor.is_floating_point():
                tensor.add_(by * (i + 1))


def half_squared_distance(of: DomainClient, start: dict[str, NDArray[Any]], names: list[str]) -> float:
    state = of.model.state_dict()
    return sum(0.5 * float(((state[n].numpy().astype(np.float64) - start[n]) ** 2).sum()) for n in names)


def snapshot(of: DomainClient) -> dict[str, NDArray[Any]]:
    return {name: tensor.numpy().astype(np.float64) for name, tensor in of.model.state_dict().items()}


@pytest.mark.parametrize(("model", "bn"), [("cnn", "average"), ("cnn_bn", "average"), ("cnn_bn", "local")])
def test_term_is_over_the_parameters_that_travel(model: str, bn: str) -> None:
    made = client({"mu": 0.3}, model=model, bn=bn)
    made.start_round(1)
    start = snapshot(made)
    moved(made)
    names = [name for name, _ in made.model.named_parameters()]
    if bn == "local":
        names = [name for name in names if name not in batchnorm_names(made.model)]
    terms = made.loss(batch())
    assert list(terms) == ["ce", "prox"]
    assert float(terms["prox"].detach()) == pytest.approx(0.3 * half_squared_distance(made, start, names), rel=1e-4)


def test_cross_entropy_is_fedavgs_and_the_term_is_proportional_to_mu() -> None:
    plain = client(kind=DomainClient)
    moved(plain)
    found = {}
    for mu in (0.01, 1.0):
        made = client({"mu": mu})
        made.start_round(1)
        moved(made)
        found[mu] = made.loss(batch())
        assert torch.equal(found[mu]["ce"], plain.loss(batch())["ce"])
    assert float(found[1.0]["prox"].detach()) == pytest.approx(100 * float(found[0.01]["prox"].detach()), rel=1e-5)


def test_received_weights_are_those_of_the_round_not_of_the_node() -> None:
    """Each round starts from what the server sent: the term begins at zero."""
    made = client({"mu": 1.0})
    for server_round in (1, 2):
        fit(made, server_round)
    given = [array + np.float32(0.5) for array in shared(made)]
    made._load(given)
    made.start_round(3)
    assert float(made.loss(batch())["prox"].detach()) == 0
    moved(made)
    assert float(made.loss(batch())["prox"].detach()) > 0


def test_one_step_against_the_equation() -> None:
    """After one batch at w^t the second batch's gradient has mu (w - w^t) on top of cross-entropy's."""
    made, given = client({"mu": 0.7}), batch()
    made.start_round(1)
    start = {name: p.detach().clone() for name, p in made.model.named_parameters()}
    moved(made)
    terms = made.loss(given)
    params = list(made.model.parameters())
    whole = torch.autograd.grad(torch.stack(list(terms.values())).sum(), params, retain_graph=True)
    ce = torch.autograd.grad(terms["ce"], params)
    for (name, p), total, plain in zip(made.model.named_parameters(), whole, ce, strict=True):
        torch.testing.assert_close(total, plain + 0.7 * (p.detach() - start[name]), rtol=1e-4, atol=1e-6)


def test_switched_off_it_is_fedavg_bit_for_bit() -> None:
    mine, plain = client({"mu": 0}), client(kind=DomainClient)
    for server_round in (1, 2):
        (arrays, metrics), (wanted, expected) = fit(mine, server_round), fit(plain, server_round)
        assert same(arrays, wanted)
        assert metrics == expected
    assert not same(fit(client(), 1)[0], fit(client(kind=DomainClient), 1)[0])


def test_a_strong_term_holds_the_weights() -> None:
    start = shared(client())
    far, near = fit(client({"mu": 0}, epochs=4))[0], fit(client({"mu": 5}, epochs=4))[0]
    assert distance(start, near) < 0.8 * distance(start, far)


def distance(a: list[NDArray[Any]], b: list[NDArray[Any]]) -> float:
    return float(sum(((x - y) ** 2).sum() for x, y in zip(a, b, strict=True)))


@pytest.mark.parametrize("bn", ["average", "local", "freeze"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_runs_with_batchnorm_and_every_precision(bn: str, precision: str) -> None:
    made = client(model="cnn_bn", bn=bn, precision=precision, epochs=1)
    arrays, metrics = fit(made)
    assert all(np.isfinite(array).all() for array in arrays)
    assert metrics["loss/prox"] > 0
    assert metrics["loss"] == pytest.approx(metrics["loss/ce"] + metrics["loss/prox"])


class Extra:
    """A plugin: a second classifier, which may stay on the node."""

    params_model = Params
    personal = False

    def __init__(self, private: bool) -> None:
        self._private = private

    def wrap(self, model: SplitModel, plan: Blueprint) -> SplitModel:
        model.register_module("extra", nn.Linear(model.feature_dim, model.num_classes))
        return model

    def private(self, model: SplitModel) -> frozenset[str]:
        names = frozenset(name for name in model.state_dict() if name.startswith("extra."))
        return names if self._private else frozenset()

    def start_round(self, model: SplitModel, rng: torch.Generator) -> None: ...

    def terms(self, model: SplitModel, batch: Batch) -> dict[str, Tensor]:
        logits = model.get_submodule("extra")(model(batch.x)[0])
        return {"extra": nn.functional.cross_entropy(logits, batch.y)}


@pytest.mark.parametrize("private", [True, False])
def test_modules_are_held_if_they_travel(private: bool) -> None:
    made = client({"mu": 1.0}, plugin=Extra(private))
    made.start_round(1)
    start = snapshot(made)
    moved(made)
    names = [n for n, _ in made.model.named_parameters() if not (private and n.startswith("extra."))]
    assert len(names) == (8 if private else 10)
    wanted = half_squared_distance(made, start, names)
    assert float(made.loss(batch())["prox"].detach()) == pytest.approx(wanted, rel=1e-4)
    _, metrics = fit(made)
    assert {"loss/ce", "loss/prox", "loss/extra"} <= set(metrics)


def test_nothing_is_kept_and_nothing_contributed() -> None:
    made = client()
    fit(made)
    assert made.memory == {}
    assert made.contribution() == {}


@pytest.mark.parametrize("wrong", [{"mu": -1}, {"mu": float("nan")}, {"nu": 1}])
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FedProxParams(**wrong)
