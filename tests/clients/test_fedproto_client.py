"""FedProto on a node: its loss against NumPy, every switch against what it names, what stays on the node."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import (
    ROUND,
    C,
    D,
    Float,
    N,
    batch,
    begun,
    check_accepted,
    client_setup,
    features_of,
    fedavg,
    fit,
    flat_gradients,
    image_set,
    new_client,
    normalised,
    same,
    shared,
    whole,
)
from support import global_prototypes as prototypes_of

from fedshift_clients.methods.fedproto import FedProtoClient
from fedshift_clients.models.networks import batchnorm_names, build
from fedshift_clients.training.prototypes import EpochMeans
from fedshift_clients.training.settings import ImageConfig, ModelConfig
from fedshift_core.errors import ConfigError
from fedshift_core.methods.fedproto import FedProtoParams
from fedshift_core.wire.names import CORRECT, COUNT, DOMAINS, LOSS_SUM, SERVER_ROUND
from fedshift_strategies.methods.fedproto import FedProtoStrategy

SHARED: dict[str, Any] = {"share_weights": True}
client = partial(new_client, FedProtoClient)
global_prototypes = partial(prototypes_of, (0, 2, 3))


def started(params: dict[str, Any] | None = None, knowledge: dict[str, NDArray[Any]] | None = None) -> FedProtoClient:
    return begun(client(params, global_prototypes() if knowledge is None else knowledge))


def values_and_gradients(
    params: dict[str, Any], knowledge: dict[str, NDArray[Any]] | None = None
) -> dict[str, tuple[float, NDArray[np.float32]]]:
    return flat_gradients(started(params, knowledge), batch())


# --- the loss --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mse_mean", "sum"])
def test_loss_against_numpy(reduction: str) -> None:
    made, given = started({"reduction": reduction, "lambda_proto": 2.5}), batch()
    h, y, g = features_of(made.model, given.x), given.y.tolist(), global_prototypes()["prototypes"].astype(np.float64)
    distances, entropy = [], []
    for i in range(len(y)):
        place = {0: 0, 2: 1, 3: 2}.get(y[i])  # class 1 has no prototype: left out
        if place is not None:
            squares = [(h[i][d] - g[place][d]) ** 2 for d in range(D)]
            distances.append(sum(squares) / (D if reduction == "mse_mean" else 1))
        with torch.no_grad():
            logits = made.model.classifier(torch.from_numpy(h[i].astype(np.float32))).numpy().astype(np.float64)
        entropy.append(-np.log(np.exp(logits[y[i]]) / np.exp(logits).sum()))
    terms = made.loss(given)
    assert list(terms) == ["ce", "proto"]
    assert float(terms["proto"].detach()) == pytest.approx(2.5 * np.mean(distances), rel=1e-4)
    assert float(terms["ce"].detach()) == pytest.approx(np.mean(entropy), rel=1e-4)


@pytest.mark.parametrize("params", [{"lambda_proto": 0.0}, {"lambda_proto": 3.0}, {"reduction": "sum"}])
def test_switch_changes_only_the_prototype_term(params: dict[str, Any]) -> None:
    default, switched = values_and_gradients({}), values_and_gradients(params)
    assert switched["ce"][0] == default["ce"][0]
    assert np.array_equal(switched["ce"][1], default["ce"][1])
    if params.get("lambda_proto") == 0:
        assert set(switched) == {"ce"}
    else:
        factor = params.get("lambda_proto", D)  # the sum is D times the mean
        assert switched["proto"][0] == pytest.approx(factor * default["proto"][0], rel=1e-5)


@pytest.mark.parametrize("params", [SHARED, {"predict_by": "prototype"}, {"proto_source": "last_epoch"}])
def test_other_switches_do_not_change_the_loss(params: dict[str, Any]) -> None:
    default, switched = values_and_gradients({}), values_and_gradients(params)
    for name in default:
        assert switched[name][0] == default[name][0]
        assert np.array_equal(switched[name][1], default[name][1])


def test_prototype_term_is_positive_and_moves_the_encoder_only() -> None:
    value, grad = values_and_gradients({})["proto"]
    in_encoder = sum(p.numel() for p in client().model.encoder.parameters())
    assert value > 0
    assert np.isfinite(grad).all() and grad[:in_encoder].any()
    assert not grad[in_encoder:].any()


@pytest.mark.parametrize(
    "knowledge", [{}, {"prototypes": np.zeros((0, D), np.float32), "labels": np.zeros(0, np.int64)}]
)
def test_without_prototypes_there_is_cross_entropy_alone(knowledge: dict[str, NDArray[Any]]) -> None:
    made = client(knowledge=knowledge)
    _, metrics = fit(made)
    assert {name for name in metrics if name.startswith("loss/")} == {"loss/ce"}


@pytest.mark.parametrize("y", [[1], [1, 1, 1], [0]])
def test_small_batches_and_classes_without_a_prototype(y: list[int]) -> None:
    terms = started().loss(batch(y=y))
    assert all(term.isfinite() for term in terms.values())
    assert (float(terms["proto"].detach()) > 0) is (y == [0])


# --- what stays on the node ------------------------------------------------------------------------


def test_the_whole_model_stays_and_goes_on_where_it_was() -> None:
    made = client(knowledge=global_prototypes())
    assert made.shared_names == []
    arrays, _ = fit(made, 1)
    assert arrays == []
    after, memory = whole(made), dict(made.memory)
    assert {f"model/{name}" for name in made.model.state_dict()} == set(memory)
    again = client(knowledge=global_prototypes())  # another process, with the same memory
    again.memory = memory
    again._load([])
    assert same(whole(again), after)
    fit(again, 2)
    fit(made, 2)
    assert same(whole(again), whole(made))
    assert not same(whole(again), after)


def test_without_the_term_nodes_train_alone() -> None:
    mine = client({"lambda_proto": 0.0}, global_prototypes())
    plain = fedavg()
    arrays = shared(plain)
    for server_round in (1, 2):
        fit(mine, server_round)
        arrays, _, _ = plain.fit(arrays, {SERVER_ROUND: server_round})
    assert same(whole(mine), arrays)


@pytest.mark.parametrize("bn", ["average", "local"])
def test_shared_weights_leave_what_fedavg_leaves(bn: str) -> None:
    model, config = build("cnn_bn", C, 0), ModelConfig.model_validate({"name": "cnn_bn", "bn": bn})
    wanted = batchnorm_names(model) if bn == "local" else frozenset()
    assert FedProtoClient.private(model, config, FedProtoParams(share_weights=True)) == wanted
    assert FedProtoClient.personal(model, config, FedProtoParams(share_weights=True)) is (bn == "local")
    assert FedProtoClient.private(model, config, FedProtoParams()) == frozenset(model.state_dict())
    assert FedProtoClient.personal(model, config, FedProtoParams())


def test_different_networks_cannot_share_weights() -> None:
    train = client_setup().train
    mixed = ModelConfig.model_validate({"name": "cnn2", "per_node": ("cnn2", "cnn3")})
    FedProtoClient.check_run(FedProtoParams(), mixed, train, ImageConfig())
    FedProtoClient.check_run(FedProtoParams(share_weights=True), ModelConfig(name="cnn2"), train, ImageConfig())
    with pytest.raises(ConfigError, match=r"cnn2.*cnn3.*share_weights=false"):
        FedProtoClient.check_run(FedProtoParams(share_weights=True), mixed, train, ImageConfig())
    assert FedProtoClient.heterogeneous


# --- what a node contributes -----------------------------------------------------------------------


@pytest.mark.parametrize(("model", "size"), [("cnn", 32), ("resnet10", 8)])
def test_contribution_is_the_class_mean_in_evaluation_mode(model: str, size: int) -> None:
    train_set = image_set(size=size)
    made = client(model=model, train_set=train_set, epochs=1)
    fit(made)
    got = made.contribution()
    made.model.eval()
    h = features_of(made.model, normalised(train_set, made.setup.images))
    assert got["counts"].tolist() == [7, 7, 6, 0]
    for k in range(C - 1):
        np.testing.assert_allclose(got["prototypes"][k], h[train_set.y == k].mean(axis=0), rtol=1e-4, atol=1e-5)
    assert not got["prototypes"][3].any()


def test_last_epoch_gathers_what_training_saw() -> None:
    made = client({"proto_source": "last_epoch"}, global_prototypes())
    made.start_round(ROUND)
    rows: list[Float] = []
    y: list[int] = []
    for epoch in range(2):
        made.start_epoch(epoch)
        rows, y = [], []
        for i in range(2):
            given = batch(6, 10 * epoch + i, [0, 1, 2, 0, 1, 1])
            rows += list(features_of(made.model, given.x))
            y += given.y.tolist()
            made.loss(given)
    got = made.finish_round(ROUND)
    assert got["counts"].tolist() == [4, 6, 2, 0]
    for k in range(C - 1):
        members = [row for row, label in zip(rows, y, strict=True) if label == k]
        np.testing.assert_allclose(got["prototypes"][k], np.mean(members, axis=0), rtol=1e-4, atol=1e-5)
    assert not got["prototypes"][3].any()


def test_where_prototypes_come_from_does_not_change_training() -> None:
    after, last = (
        client(SHARED, global_prototypes()),
        client(SHARED | {"proto_source": "last_epoch"}, global_prototypes()),
    )
    assert same(fit(after, ROUND)[0], fit(last, ROUND)[0])
    assert after.contribution()["counts"].tolist() == last.contribution()["counts"].tolist() == [7, 7, 6, 0]
    assert not np.allclose(after.contribution()["prototypes"], last.contribution()["prototypes"])


@pytest.mark.parametrize("source", ["after_training", "last_epoch"])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_contribution_is_what_the_server_accepts(source: str, precision: str) -> None:
    made = client({"proto_source": source}, global_prototypes(), epochs=1, precision=precision)
    _, metrics = fit(made, ROUND)
    check_accepted(made, FedProtoStrategy)
    terms = [value for name, value in metrics.items() if name.startswith("loss/")]
    assert len(terms) == 2 and np.isfinite(terms).all()
    assert metrics["loss"] == pytest.approx(sum(terms))


def test_epoch_means_of_nothing_are_zero() -> None:
    means, counts = EpochMeans(C, D, torch.device("cpu")).result()
    assert not means.any() and not counts.any()


# --- prediction ------------------------------------------------------------------------------------


def test_prediction_by_head_is_the_default() -> None:
    made, x = client(knowledge=global_prototypes()), batch().x
    assert torch.equal(made.predict(x), made.forward(x)[1])


def test_prediction_by_the_nearest_global_prototype() -> None:
    # Evaluation calls no start_round: what counts is the knowledge of the moment.
    made, x = client({"predict_by": "prototype"}), batch().x
    assert torch.equal(made.predict(x), made.forward(x)[1])  # before there are prototypes
    made.knowledge = global_prototypes()
    h, g = features_of(made.model, x), global_prototypes()["prototypes"].astype(np.float64)
    nearest = [int(np.argmin([((row - p) ** 2).sum() for p in g])) for row in h]
    assert made.predict(x).argmax(dim=1).tolist() == [[0, 2, 3][j] for j in nearest]


def test_evaluation_by_prototype_is_finite_and_counts_right() -> None:
    test = image_set()
    made = client({"predict_by": "prototype"}, global_prototypes(), train_set=test)
    _, number, metrics = made.evaluate([], {DOMAINS: ["a"], SERVER_ROUND: ROUND})
    assert (number, metrics[COUNT + "a"]) == (N, N)
    assert np.isfinite(metrics[LOSS_SUM + "a"])
    h, g = features_of(made.model, normalised(test, made.setup.images)), global_prototypes()["prototypes"]
    right = sum(
        [0, 2, 3][int(np.argmin([((row - p) ** 2).sum() for p in g]))] == k for row, k in zip(h, test.y, strict=True)
    )
    assert metrics[CORRECT + "a"] == right
