"""F2DC on a node: FedAvg's client with its modules, each switch against its term."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import C, batch, check_alike, fit, new_client, same, terms_in
from support import fedavg as fedavg_of
from support import image_set as images_of

from fedshift_app.config.resolving import resolve
from fedshift_app.node.setup import initial_model, is_personal
from fedshift_clients.base import DomainClient
from fedshift_clients.modules.f2dc import F2DCModules
from fedshift_clients.modules.params import F2DCParams
from fedshift_clients.training.batches import Batch
from fedshift_datasets.base import ImageSet

OFF: dict[str, Any] = {"use_dfd_loss": False, "use_dfc_loss": False}
TRAIN: dict[str, Any] = {"lr": 0.02, "index": 0}
Found = dict[str, tuple[float, NDArray[np.float32]]]


def image_set(y: Sequence[int] | None = None) -> ImageSet:
    return images_of(18) if y is None else ImageSet(images_of(len(y)).x, np.array(y))


def client(params: dict[str, Any] | None = None, **options: Any) -> DomainClient:
    modules = [F2DCModules(F2DCParams(**params or {}))]
    return new_client(DomainClient, modules=modules, **{"train_set": image_set()} | TRAIN | options)


def fedavg(**options: Any) -> DomainClient:
    return fedavg_of(train_set=image_set(), **TRAIN | options)


def given() -> Batch:
    return batch(8, 3, classes=C)


def terms(params: dict[str, Any] | None = None) -> Found:
    """Each term of one batch, and its gradient with respect to the network's own weights."""
    made = client(params)
    made._prepare_round(1)
    made.model.train()
    weights = [*made.model.encoder.parameters(), *made.model.classifier.parameters()]
    content = {}
    for name, term in made.terms_of(given()).items():
        grads = torch.autograd.grad(term, weights, retain_graph=True, allow_unused=True, materialize_grads=True)
        content[name] = (float(term.detach()), torch.cat([grad.flatten() for grad in grads]).numpy())
    return content


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
    off, plain = client(OFF, model=model), fedavg(model=model)
    assert off.shared_names == plain.shared_names
    check_alike(off, plain)


def test_dfd_alone_leaves_the_cross_entropy_of_fedavg() -> None:
    result = terms({"use_dfc_loss": False})
    assert set(result) == {"ce", "dfd"}
    plain = fedavg()
    plain.model.train()
    assert float(plain.terms_of(given())["ce"].detach()) == result["ce"][0]


def test_round_is_repeatable_and_depends_on_node_and_round() -> None:
    first = fit(client())
    assert same(first[0], fit(client())[0])
    assert not same(first[0], fit(client(index=1))[0])
    assert not same(first[0], fit(client(), 2)[0])
    assert set(terms_in(first[1])) == {"ce", "dfd", "dfc"}
    assert first[1]["loss"] == pytest.approx(sum(first[1][f"loss/{name}"] for name in ("ce", "dfd", "dfc")))


@pytest.mark.parametrize(
    "params",
    [
        {}, {"conv_layers": 3, "hidden": 50}, {"insert_after": [1, 2]}, {"use_dfc_loss": False},
        {"use_dfd_loss": False}, {"y_hat_from": "aux", "noise": "gumbel_pair"}, {"lambda1": 0.0, "lambda2": 0.0},
    ],
)  # fmt: skip
@pytest.mark.parametrize("bn", ["average", pytest.param("local", marks=pytest.mark.long), "freeze"])
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
    made = client({"local_modules": "local", "eval_modules": "none"})
    assert made.shared_names == client(OFF).shared_names
    for scored, personal in (("none", False), ("client_mean", True)):
        config = resolve({"method": "f2dc", "set": f"method.local_modules=local method.eval_modules={scored}"})
        assert is_personal(config, initial_model(config)) is personal
