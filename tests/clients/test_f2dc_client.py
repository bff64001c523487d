"""F2DC on a node: FedAvg's client with the modules of its own parameters, each switch against its term."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from clients.base import ClientSetup, DomainClient
from clients.f2dc import F2DCClient
from clients.models.networks import Blueprint, build
from clients.modules.f2dc import Decoupling, DecouplingParams
from clients.training.batches import Batch
from clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from datasets.base import ImageSet
from fedshift_wire.errors import ConfigError
from fedshift_wire.names import SERVER_ROUND, Params

C, N, SEED = 4, 18, 11
OFF: dict[str, Any] = {"use_dfd_loss": False, "use_dfc_loss": False}
Found = dict[str, tuple[float, NDArray[np.float32]]]


def image_set(y: list[int] | None = None) -> ImageSet:
    labels = np.array(y if y is not None else [i % (C - 1) for i in range(N)], dtype=np.int64)
    x = np.random.default_rng(0).integers(0, 256, size=(len(labels), 32, 32, 3), dtype=np.uint8)
    return ImageSet(x, labels)


def client(
    params: dict[str, Any] | None = None, of: type[DomainClient] = F2DCClient, index: int = 0, **options: Any
) -> DomainClient:
    config = ModelConfig.model_validate({"name": options.pop("model", "cnn"), "bn": options.pop("bn", "average")})
    train_set = options.pop("train_set", None) or image_set()
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 0.02, "precision": "float32"}
    setup = ClientSetup(
        seed=SEED, index=index, device=torch.device("cpu"), model=config, train=TrainConfig(**settings | options),
        images=ImageConfig(crop_padding=2, flip=True, eval_batch=7),
    )  # fmt: skip
    own = DecouplingParams(**params or {}) if of is F2DCClient else Params()
    plugin = of.plugin(None, own)
    model = build(config.name, C, 0)
    if plugin is not None:
        model = plugin.wrap(model, Blueprint(config, C, 32, 0))
    return of(model, setup, own, train_set, lambda domain: train_set, plugin=plugin)


def fit(of: DomainClient, server_round: int = 1) -> tuple[list[NDArray[Any]], dict[str, Any]]:
    state = of.model.state_dict()
    arrays, number, metrics = of.fit(
        [state[name].numpy().copy() for name in of.shared_names], {SERVER_ROUND: server_round}
    )
    assert number == len(of.train_set)
    return arrays, metrics


def same(a: list[NDArray[Any]], b: list[NDArray[Any]]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def terms(params: dict[str, Any] | None = None) -> Found:
    """Each term of one batch, and its gradient with respect to the network's own weights."""
    made = client(params)
    plugin = F2DCClient.plugin(None, made.params)
    plugin.start_round(made.model, made.torch_rng("modules", 1))
    made.start_round(1)
    made.model.train()
    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    weights = [*made.model.encoder.parameters(), *made.model.classifier.parameters()]
    found = {}
    for name, term in made.terms(Batch(x, torch.arange(8) % C, 0)).items():
        grads = torch.autograd.grad(term, weights, retain_graph=True, allow_unused=True, materialize_grads=True)
        found[name] = (float(term.detach()), torch.cat([grad.flatten() for grad in grads]).numpy())
    return found


# --- switches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "changed"),
    [
        ({"use_dfd_loss": False}, {"dfd"}),
        ({"lambda1": 0.0}, {"dfd"}),
        ({"lambda1": 0.3}, {"dfd"}),
        ({"tau": 0.5}, {"dfd"}),
        ({"lambda2": 0.0}, {"dfc"}),
        ({"lambda2": 3.0}, {"dfc"}),
        # Without A_C the classifier sees f, and y^ comes from it.
        ({"use_dfc_loss": False}, {"ce", "dfd", "dfc"}),
        ({"sigma": 1.0}, {"ce", "dfd", "dfc"}),
        ({"noise": "gumbel_pair"}, {"ce", "dfd", "dfc"}),
        ({"eval_noise": True}, set()),
        ({"test_feature": "f_plus"}, set()),
        ({"eval_modules": "none"}, set()),
        ({"local_modules": "local", "eval_modules": "client_mean"}, set()),
    ],
)
def test_switch_changes_exactly_the_terms_it_names(params: dict[str, Any], changed: set[str]) -> None:
    default, switched = terms(), terms(params)
    assert list(default) == ["ce", "dfd", "dfc"]
    off = {"use_dfd_loss": "dfd", "lambda1": "dfd", "use_dfc_loss": "dfc", "lambda2": "dfc"}
    gone = {off[key] for key, value in params.items() if key in off and not value}
    assert set(switched) == set(default) - gone
    for name, (value, grad) in switched.items():
        equal = value == default[name][0] and np.array_equal(grad, default[name][1])
        assert equal is (name not in changed), name


def test_most_confident_wrong_class_from_the_auxiliary_classifier_touches_only_dfd() -> None:
    default, switched = terms(), terms({"y_hat_from": "aux"})
    assert default["dfd"][0] != switched["dfd"][0]
    for name in ("ce", "dfc"):
        assert default[name][0] == switched[name][0]


@pytest.mark.parametrize(("term", "key"), [("dfd", "lambda1"), ("dfc", "lambda2")])
def test_lambda_scales_its_term(term: str, key: str) -> None:
    assert terms({key: 3.0})[term][0] == pytest.approx(3 * terms({key: 1.0})[term][0], rel=1e-6)


def test_terms_are_positive_and_move_the_encoder() -> None:
    for value, grad in terms().values():
        assert value > 0
        assert grad.any() and np.isfinite(grad).all()


# --- a round ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["cnn", "cnn_bn"])
def test_both_off_is_fedavg_to_the_bit(model: str) -> None:
    off, fedavg = client(OFF, model=model), client(of=DomainClient, model=model)
    assert off.shared_names == fedavg.shared_names
    for server_round in (1, 2):
        (one, told), (other, also) = fit(off, server_round), fit(fedavg, server_round)
        assert same(one, other) and told == also


def test_dfd_alone_leaves_the_cross_entropy_of_fedavg() -> None:
    found = terms({"use_dfc_loss": False})
    assert set(found) == {"ce", "dfd"}
    fedavg = client(of=DomainClient)
    fedavg.model.train()
    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    assert float(fedavg.terms(Batch(x, torch.arange(8) % C, 0))["ce"].detach()) == found["ce"][0]


def test_round_is_repeatable_and_depends_on_node_and_round() -> None:
    first = fit(client())
    assert same(first[0], fit(client())[0])
    assert not same(first[0], fit(client(index=1))[0])
    assert not same(first[0], fit(client(), 2)[0])
    assert {name for name in first[1] if name.startswith("loss/")} == {"loss/ce", "loss/dfd", "loss/dfc"}
    assert first[1]["loss"] == pytest.approx(sum(first[1][f"loss/{name}"] for name in ("ce", "dfd", "dfc")))


@pytest.mark.parametrize(
    "params",
    [
        {}, {"conv_layers": 3, "hidden": 50}, {"insert_after": [1, 2]}, {"use_dfc_loss": False},
        {"use_dfd_loss": False}, {"y_hat_from": "aux", "noise": "gumbel_pair"}, {"lambda1": 0.0, "lambda2": 0.0},
    ],
)  # fmt: skip
@pytest.mark.parametrize("bn", ["average", "local", "freeze"])
def test_rounds_stay_finite(params: dict[str, Any], bn: str) -> None:
    made = client(params, model="cnn_bn", bn=bn, train_set=image_set([0] * 5 + [2] * 4), epochs=1)
    for server_round in (1, 2):  # 9 images in batches of 8: the last, of one, joins the first
        arrays, metrics = fit(made, server_round)
        assert all(np.isfinite(a).all() for a in arrays)
        assert all(np.isfinite(value) for value in metrics.values())


def test_one_image_is_enough() -> None:
    arrays, metrics = fit(client(train_set=image_set([1]), epochs=1))
    assert all(np.isfinite(a).all() for a in arrays) and np.isfinite(metrics["loss"])


def test_nothing_travels_besides_weights() -> None:
    made = client()
    fit(made)
    assert made.contribution() == {}


def test_local_modules_make_no_personal_model() -> None:
    params = {"local_modules": "local", "eval_modules": "none"}
    made = client(params)
    assert not F2DCClient.personal(made.model, made.setup.model, made.params)
    assert made.shared_names == client(OFF).shared_names


def test_modules_given_twice_are_refused() -> None:
    with pytest.raises(ConfigError, match="carries its modules already"):
        F2DCClient.plugin(Decoupling(DecouplingParams()), DecouplingParams())
