"""FedICON on a node: what each phase trains, the test phase against slow versions, every switch."""

import copy
from collections.abc import Callable
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from clients.base import ClientSetup, DomainClient, Scores
from clients.fedicon import BEFORE, PROJECTION_WIDTH, FedICONClient, FedICONParams
from clients.images.augment import Pipeline
from clients.losses.fedicon import instance_contrast, supervised_contrast
from clients.models.networks import Blueprint, build
from clients.training.batches import Batch
from clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from datasets.base import ImageSet
from datasets.corruptions import corrupt, random_corruption
from fedshift_wire.errors import ConfigError
from fedshift_wire.names import LOCAL_DOMAINS, SERVER_ROUND, Params
from fedshift_wire.seeding import torch_seed

SEED, INDEX, ROUND = 11, 3, 2
C, D, N = 4, 64, 20  # class 3 has no image; D is the cnn's
OFF: dict[str, Any] = {"lie": False, "tta": False}
VIEWS = ImageConfig(
    crop_padding=2, resized_crop=(0.5, 1.0), jitter=(0.4, 0.4, 0.4, 0.1), grayscale=0.2, views=2, eval_batch=33
)
PLAIN = ImageConfig(crop_padding=2, flip=True, eval_batch=33)
CLASSIFIER = {"phase": np.array([1])}
ENCODER = {"phase": np.array([0])}

State = dict[str, Tensor]


def image_set(n: int = N, seed: int = 0, classes: int = C - 1) -> ImageSet:
    """Images that tell their class: another part of them is bright."""
    rng = np.random.default_rng(seed)
    y = np.arange(n, dtype=np.int64) % classes
    x = rng.integers(0, 120, size=(n, 32, 32, 3))
    for image, label in zip(x, y, strict=True):
        image[8 * label : 8 * label + 8] += 130
    return ImageSet(x.astype(np.uint8), y)


def setup(
    model: str = "cnn", bn: str = "average", images: ImageConfig = VIEWS, index: int = INDEX, **train: Any
) -> ClientSetup:
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 0.05, "precision": "float32"}
    return ClientSetup(
        seed=SEED, index=index, device=torch.device("cpu"), images=images,
        model=ModelConfig.model_validate({"name": model, "bn": bn}), train=TrainConfig(**settings | train),
    )  # fmt: skip


def client(
    params: dict[str, Any] | None = None, knowledge: dict[str, NDArray[Any]] | None = None, **options: Any
) -> FedICONClient:
    train_set = options.pop("train_set", None) or image_set()
    configured, given = setup(**options), FedICONParams(**params or {})
    model = FedICONClient.build_model(Blueprint(configured.model, C, 32, 0), given)
    made = FedICONClient(model, configured, given, train_set, lambda domain: image_set(15, seed=1))
    made.knowledge = dict(knowledge or {})
    made.server_round = ROUND
    return made


def shared(of: DomainClient) -> list[NDArray[Any]]:
    return [of.model.state_dict()[name].numpy().copy() for name in of.shared_names]


def state_of(of: DomainClient) -> State:
    return {name: tensor.clone() for name, tensor in of.model.state_dict().items()}


def changed(before: State, after: State) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def parts(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def fit(of: DomainClient, server_round: int = 1, **config: Any) -> tuple[list[NDArray[Any]], dict[str, Any]]:
    arrays, number, metrics = of.fit(shared(of), {SERVER_ROUND: server_round} | config)
    assert number == len(of.train_set)
    return arrays, metrics


def same(a: list[NDArray[Any]], b: list[NDArray[Any]]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def batch(b: int = 8, first: int = 0) -> Batch:
    rng = torch.Generator().manual_seed(first)
    x, second = (torch.randn(b, 3, 32, 32, generator=rng) for _ in range(2))
    return Batch(x, torch.tensor([i % (C - 1) for i in range(b)]), 0, second)


def scored_states(made: FedICONClient, test: ImageSet) -> tuple[Scores, list[State]]:
    """Score a test set; return the model's state at each call of ``score`` too."""
    seen: list[State] = []
    score = made.score

    def spy(images: ImageSet, predict: Callable[[Tensor], Tensor] | None = None) -> tuple[int, float]:
        seen.append(state_of(made))
        return score(images, predict)

    made.score = spy  # type: ignore[method-assign]
    scores = made.score_test(test)
    made.score = score  # type: ignore[method-assign]
    return scores, seen


def normalised(images: ImageSet) -> Tensor:
    x = (images.x / 255 - np.array(VIEWS.mean)) / np.array(VIEWS.std)
    return torch.from_numpy(x.transpose(0, 3, 1, 2).astype(np.float32))


# --- encoder rounds --------------------------------------------------------------------------------


@pytest.mark.parametrize("supervised", [True, False])
@pytest.mark.parametrize("projection", ["none", "mlp"])
def test_loss_contrasts_the_two_views_of_the_batch(supervised: bool, projection: str) -> None:
    made, given = client({"supervised": supervised, "projection": projection, "tau": 0.3}), batch()
    assert given.second is not None
    head = made.model.get_submodule("projection") if projection == "mlp" else torch.nn.Identity()
    z, other = (head(made.model.encoder(x)) for x in (given.x, given.second))
    assert z.shape == (8, PROJECTION_WIDTH if projection == "mlp" else D)
    ((name, term),) = made.loss(given).items()
    expected = supervised_contrast(z, other, given.y, 0.3) if supervised else instance_contrast(z, other, 0.3)
    assert name == ("supcon" if supervised else "instance")
    assert float(term.detach()) == pytest.approx(float(expected.detach()), rel=1e-4)


@pytest.mark.parametrize("knowledge", [{}, ENCODER])
@pytest.mark.parametrize("model", ["cnn", "cnn_bn"])
def test_encoder_round_trains_the_encoder_alone(knowledge: dict[str, NDArray[Any]], model: str) -> None:
    made = client(knowledge=knowledge, model=model, momentum=0.9, weight_decay=0.1)
    before = state_of(made)
    _, metrics = fit(made)
    moved = changed(before, state_of(made))
    assert moved == {name for name in before if name.startswith("encoder")}  # not even decayed
    assert {name for name in metrics if name.startswith("loss/")} == {"loss/supcon"}
    assert metrics["loss"] == pytest.approx(metrics["loss/supcon"])
    assert (made.view_count(1), made.epochs(1)) == (2, 2)


def test_projection_is_trained_with_the_encoder_and_travels() -> None:
    made, plain = client({"projection": "mlp"}), client()
    for name, weights in plain.model.state_dict().items():  # the network starts as without it
        assert torch.equal(weights, made.model.state_dict()[name])
    before = state_of(made)
    fit(made)
    assert parts(changed(before, state_of(made))) == {"encoder", "projection"}
    assert set(made.shared_names) - set(plain.shared_names) == {
        f"projection.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")
    }


def test_one_view_is_refused_where_two_are_contrasted() -> None:
    model, train = ModelConfig(name="cnn"), TrainConfig(epochs=1, batch_size=8, lr=0.1)
    with pytest.raises(ConfigError, match=r"images\.views=1"):
        FedICONClient.check_run(FedICONParams(), model, train, PLAIN)
    FedICONClient.check_run(FedICONParams(), model, train, VIEWS)
    FedICONClient.check_run(FedICONParams(lie=False), model, train, PLAIN)
    fit(client({"lie": False}, images=PLAIN))


# --- classifier rounds -----------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["cnn", "cnn_bn"])
def test_classifier_round_trains_the_classifier_alone(model: str) -> None:
    made = client({"classifier_epochs": 3}, CLASSIFIER, model=model, momentum=0.9, weight_decay=0.1)
    before = state_of(made)
    _, metrics = fit(made)
    assert changed(before, state_of(made)) == {"classifier.weight", "classifier.bias"}  # nor BatchNorm's statistics
    assert {name for name in metrics if name.startswith("loss/")} == {"loss/ce"}
    assert (made.view_count(1), made.epochs(1)) == (0, 3)


def test_phases_may_alternate_on_one_client() -> None:
    made = client()
    for knowledge, part in ((CLASSIFIER, "classifier"), (ENCODER, "encoder"), (CLASSIFIER, "classifier")):
        made.knowledge, before = dict(knowledge), state_of(made)
        fit(made)
        made.score_test(image_set(9))  # must not leave flags behind either
        assert parts(changed(before, state_of(made))) == {part}


def gradient_step(
    weight: NDArray[np.float64], bias: NDArray[np.float64], features: NDArray[np.float64], y: list[int], lr: float
) -> None:
    """One step of multinomial logistic regression on all samples, in place."""
    grad_w, grad_b = np.zeros_like(weight), np.zeros_like(bias)
    for row, label in zip(features, y, strict=True):
        logits = weight @ row + bias
        p = np.exp(logits - logits.max())
        p /= p.sum()
        p[label] -= 1
        grad_w += np.outer(p, row) / len(y)
        grad_b += p / len(y)
    weight -= lr * grad_w
    bias -= lr * grad_b


def test_classifier_round_is_logistic_regression_on_plain_images() -> None:
    made = client({"classifier_epochs": 2}, CLASSIFIER, batch_size=N, momentum=0.0, weight_decay=0.0, lr=0.5)
    weight, bias = (state_of(made)[f"classifier.{kind}"].numpy().astype(np.float64) for kind in ("weight", "bias"))
    with torch.no_grad():
        features = made.model.encoder(normalised(made.train_set)).numpy().astype(np.float64)
    fit(made)
    for _ in range(2):
        gradient_step(weight, bias, features, made.train_set.y.tolist(), 0.5)
    got = made.model.classifier
    np.testing.assert_allclose(got.weight.detach().numpy(), weight, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(got.bias.detach().numpy(), bias, rtol=1e-3, atol=1e-5)


# --- test phase: the personal classifier -----------------------------------------------------------


@pytest.mark.parametrize("training", ["federated_personal", "local"])
def test_personal_classifier_is_logistic_regression_on_own_images(training: str) -> None:
    params = {"tta": False, "classifier_training": training, "personal_epochs": 3}
    made = client(params, batch_size=N, momentum=0.0, weight_decay=0.0, lr=0.5)
    before = state_of(made)
    weight, bias = (before[f"classifier.{k}"].numpy().astype(np.float64) for k in ("weight", "bias"))
    with torch.no_grad():
        features = made.model.encoder(normalised(made.train_set)).numpy().astype(np.float64)
    _, (seen,) = scored_states(made, image_set(9))
    for _ in range(3):
        gradient_step(weight, bias, features, made.train_set.y.tolist(), 0.5)
    assert parts(changed(before, seen)) == {"classifier"}
    np.testing.assert_allclose(seen["classifier.weight"], weight, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(seen["classifier.bias"], bias, rtol=1e-3, atol=1e-5)


def test_personal_classifier_takes_momentum_batches_and_decay_of_local_training() -> None:
    found = []
    for train in ({}, {"momentum": 0.0}, {"batch_size": 4}, {"weight_decay": 0.1}, {"lr": 0.01}):
        _, (seen,) = scored_states(client({"tta": False}, **train), image_set(9))
        found.append(seen["classifier.weight"])
    assert all(not torch.equal(found[0], other) for other in found[1:])


# --- test phase: adaptation ------------------------------------------------------------------------


def slow_adaptation(made: FedICONClient, images: NDArray[np.uint8], lr: float, batch_size: int, epochs: int) -> State:
    """Plain gradient descent on Eq. 5, the views drawn batch after batch as the node draws them."""
    encoder = copy.deepcopy(made.model.encoder)
    pipeline = Pipeline(VIEWS, torch.device("cpu"))
    order, first, second = (
        torch.Generator().manual_seed(torch_seed(SEED, f"fedicon-tta-{name}", INDEX, ROUND))
        for name in ("order", "first", "second")
    )
    for _ in range(epochs):
        for index in torch.randperm(len(images), generator=order).split(batch_size):  # type: ignore[no-untyped-call]
            one, other = pipeline.two_views(torch.from_numpy(images)[index], first, second)
            loss = instance_contrast(encoder(one), encoder(other), made.params.tau)
            weights = list(encoder.parameters())
            for weight, grad in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight.data -= lr * grad
    return {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}


@pytest.mark.parametrize(("n", "batch_size", "epochs"), [(12, 12, 1), (12, 4, 1), (12, 5, 2), (5, 32, 1)])
def test_adaptation_is_descent_on_the_contrast_of_the_test_images(n: int, batch_size: int, epochs: int) -> None:
    made = client({"tta_batch": batch_size, "tta_epochs": epochs, "tta_lr": 0.05, "tau": 0.2})
    test, before = image_set(n, seed=1), state_of(made)
    expected = slow_adaptation(made, test.x, 0.05, batch_size, epochs)
    scores, (unadapted, adapted) = scored_states(made, test)
    assert parts(changed(unadapted, adapted)) == {"encoder"}  # the classifier is fixed
    assert parts(changed(before, unadapted)) == {"classifier"}  # which is personal
    for name, weights in expected.items():
        np.testing.assert_allclose(adapted[name], weights, rtol=1e-3, atol=1e-5, err_msg=name)
    made.model.load_state_dict(adapted)
    correct, loss_sum = made.score(test)
    assert (scores.correct, scores.loss_sum) == (correct, loss_sum)
    made.model.load_state_dict(unadapted)
    assert scores.others == {BEFORE: made.score(test)[0]}


@pytest.mark.parametrize("mode", ["transductive", "online"])
@pytest.mark.parametrize("params", [{}, {"lie": False}])
def test_labels_of_test_images_change_nothing_of_the_adaptation(mode: str, params: dict[str, Any]) -> None:
    test = image_set(12, seed=1)
    wrong = ImageSet(test.x, (test.y + 1) % C)
    made = client(params | {"tta_mode": mode, "tta_batch": 4, "tta_lr": 0.05})
    _, honest = scored_states(made, test)
    _, fooled = scored_states(made, wrong)
    assert len(honest) == (4 if mode == "online" else 2)
    assert all(not changed(a, b) for a, b in zip(honest, fooled, strict=True))
    assert changed(honest[0], honest[-1])


def test_online_predicts_each_batch_after_its_step() -> None:
    made, test = client({"tta_mode": "online", "tta_batch": 4, "tta_lr": 0.05}), image_set(10, seed=1)
    scored: list[list[int]] = []
    score = made.score

    def spy(images: ImageSet, predict: Callable[[Tensor], Tensor] | None = None) -> tuple[int, float]:
        scored.append([next(i for i in range(10) if np.array_equal(test.x[i], x)) for x in images.x])
        return score(images, predict)

    made.score = spy  # type: ignore[method-assign]
    made.score_test(test)
    assert scored[0] == list(range(10))  # before adaptation
    assert [len(places) for places in scored[1:]] == [4, 4, 2]
    assert sorted(chain.from_iterable(scored[1:])) == list(range(10))
    _, states = scored_states(made, test)
    assert all(changed(a, b) for a, b in pairwise(states))


def test_with_one_batch_online_is_transductive() -> None:
    test = image_set(12, seed=1)
    online, whole = (
        client({"tta_mode": mode, "tta_lr": 0.1}).score_test(test) for mode in ("online", "transductive")
    )  # fmt: skip
    assert (online.correct, online.others) == (whole.correct, whole.others)
    assert online.loss_sum == pytest.approx(whole.loss_sum, rel=1e-4)


@pytest.mark.parametrize("mode", ["transductive", "online"])
@pytest.mark.parametrize(("n", "batch_size"), [(1, 8), (9, 8), (2, 8), (17, 4)])
def test_last_batch_of_one_image(n: int, batch_size: int, mode: str) -> None:
    made = client({"tta_batch": batch_size, "tta_mode": mode}, model="cnn_bn")
    scores, states = scored_states(made, image_set(n, seed=1))
    assert 0 <= scores.correct <= n and np.isfinite(scores.loss_sum)
    assert all(tensor.isfinite().all() for tensor in states[-1].values())
    if n == 1:  # alone, it has nothing to stand out from: Eq. 5 is zero, only BatchNorm has seen it
        weights = {name for name, _ in made.model.named_parameters()}
        assert not changed(states[0], states[-1]) & weights


@pytest.mark.parametrize("bn", ["average", "freeze", "local"])
def test_adaptation_moves_batchnorm_unless_it_is_frozen(bn: str) -> None:
    made = client(model="cnn_bn", bn=bn)
    _, (before, after) = scored_states(made, image_set(12, seed=1))
    moved = changed(before, after)
    assert any("running" in name for name in moved) is (bn != "freeze")
    assert not made.model.training  # scored in evaluation mode


@pytest.mark.parametrize("params", [{}, {"lie": False}, {"tta_mode": "online"}, {"classifier_training": "local"}])
def test_scoring_leaves_the_model_as_found_and_starts_again(params: dict[str, Any]) -> None:
    made, test = client(params | {"tta_lr": 0.05}, model="cnn_bn"), image_set(12, seed=1)
    before = state_of(made)
    torch.manual_seed(3)
    rng = torch.get_rng_state()
    first = made.score_test(test)
    assert not changed(before, state_of(made))
    assert made.memory == {}
    made.score_test(image_set(7, seed=5))  # what was scored in between does not matter
    assert made.score_test(test) == first
    assert torch.equal(torch.get_rng_state(), rng)


def test_scores_come_out_of_evaluate_before_and_after() -> None:
    made = client()
    _, number, metrics = made.evaluate(shared(made), {SERVER_ROUND: ROUND, "domains": ["a"]})
    direct = made.score_test(image_set(15, seed=1))
    assert number == metrics["count/a"] == 15
    assert metrics["correct/a"] == direct.correct
    assert metrics[f"other-correct/{BEFORE}/a"] == direct.others[BEFORE]


def test_a_batch_may_be_larger_than_those_of_training() -> None:
    """The memory that all batches use in turn is no limit."""
    made, test = client({"tta_batch": 40, "tta_lr": 0.05}), image_set(50, seed=1)
    assert made.setup.train.batch_size < 40
    assert [len(seen) for seen in made._adapt(test.x)] == [40, 10]


@pytest.mark.parametrize("mode", ["transductive", "online"])
@pytest.mark.parametrize("corruption", ["gaussian_noise", "contrast", "random"])
def test_adaptation_to_corrupted_images(corruption: str, mode: str) -> None:
    """Covariate shift: severe corruption, a classifier that knows the clean classes, a step that matters."""
    test, keys = image_set(24, seed=1), np.arange(24)
    x = random_corruption(test.x, 5, keys) if corruption == "random" else corrupt(test.x, corruption, 5, keys)
    made = client({"tta_mode": mode, "tta_lr": 0.01, "personal_epochs": 20})
    for _ in range(2):
        fit(made)
    scores, (unadapted, *adapted) = scored_states(made, ImageSet(x, test.y))
    assert changed(unadapted, adapted[-1])
    assert 0 <= scores.correct <= 24 and 0 <= scores.others[BEFORE] <= 24
    assert np.isfinite(scores.loss_sum)


# --- switches --------------------------------------------------------------------------------------


def behaviour(params: dict[str, Any]) -> dict[str, Any]:
    """Everything that a switch might change, each under a name of its own."""
    made = client({"tta_lr": 0.05} | params)
    start = state_of(made)
    _, metrics = fit(made)
    encoder = state_of(made)
    made.knowledge = dict(CLASSIFIER)
    fit(made)
    classifier = state_of(made)
    made.model.load_state_dict(start)
    made.knowledge = {}
    scores, states = scored_states(made, image_set(12, seed=1))
    return {
        "terms": {name for name in metrics if name.startswith("loss/")},
        "views": made.view_count(1),
        "trained": parts(changed(start, encoder)),
        "encoder": encoder,
        "classifier": {k: v for k, v in classifier.items() if k.startswith("classifier")},
        "travels": made.shared_names,
        "before": states[0],
        "after": states[-1],
        "others": set(scores.others),
    }


def differing(a: dict[str, Any], b: dict[str, Any]) -> set[str]:
    weights = {"encoder", "classifier", "before", "after"}
    return {name for name in a if (changed(a[name], b[name]) if name in weights else a[name] != b[name])}


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({}, set()),
        # What is trained, on what; then the classifier is trained as well, from where the encoder round left it.
        ({"lie": False}, {"terms", "views", "trained", "encoder", "classifier", "before", "after"}),
        ({"gis": False}, {"travels"}),
        ({"tta": False}, {"after", "others"}),
        # Another loss, so another encoder for the classifier round that follows; tests start from the same weights.
        ({"supervised": False}, {"terms", "encoder", "classifier"}),
        ({"classifier_training": "federated"}, {"before", "after"}),
        ({"classifier_training": "local"}, {"travels"}),
        ({"tta_mode": "online"}, set()),  # one batch
        ({"tta_epochs": 2}, {"after"}),
        ({"tta_lr": 0.02}, {"after"}),
        ({"tta_batch": 5}, {"after"}),
        ({"personal_epochs": 2}, {"before", "after"}),
        ({"classifier_epochs": 2}, {"classifier"}),
        ({"tau": 0.5}, {"encoder", "classifier", "after"}),
    ],
)
def test_switch_changes_exactly_what_it_names(params: dict[str, Any], named: set[str]) -> None:
    default = behaviour({})
    assert default["terms"] == {"loss/supcon"}
    assert (default["views"], default["trained"], default["others"]) == (2, {"encoder"}, {BEFORE})
    assert differing(default, behaviour(params)) == named


def test_without_gis_nothing_travels_and_the_node_goes_on_where_it_was() -> None:
    made, sharing = client({"gis": False}), client()
    arrays, _ = fit(made)
    assert arrays == [] and made.shared_names == []
    assert {name.removeprefix("model/") for name in made.memory} == set(made.model.state_dict())
    trained = state_of(made)
    fit(sharing)
    assert not changed(trained, state_of(sharing))  # the training itself is the same
    again = client({"gis": False})
    again.memory = made.memory
    again.evaluate([], {SERVER_ROUND: 1, "domains": []})
    assert not changed(trained, state_of(again))


def test_local_classifier_never_travels_and_starts_as_it_was() -> None:
    made = client({"classifier_training": "local"})
    assert {name for name in made.model.state_dict() if name not in made.shared_names} == {
        "classifier.weight", "classifier.bias",
    }  # fmt: skip
    initial = state_of(made)
    fit(made, **{LOCAL_DOMAINS: ["a"]})
    assert parts(changed(initial, state_of(made))) == {"encoder"}


@pytest.mark.parametrize(
    ("params", "personal"),
    [
        ({}, True),
        ({"tta": False}, True),
        ({"classifier_training": "federated"}, True),
        ({"classifier_training": "federated", "tta": False}, False),
        ({"classifier_training": "local", "tta": False}, True),
        ({"lie": False}, True),
        (OFF, False),
        (OFF | {"classifier_training": "local"}, False),
        (OFF | {"gis": False}, True),
    ],
)
def test_nodes_are_scored_each_for_itself_where_they_adapt(params: dict[str, Any], personal: bool) -> None:
    made = client(params)
    assert FedICONClient.personal(made.model, made.setup.model, made.params) is personal
    if not personal:
        assert made.score_test(image_set(9)) == Scores(*made.score(image_set(9)))


def test_batchnorm_stays_private_with_and_without_a_local_classifier() -> None:
    for params, more in (({}, set()), ({"classifier_training": "local"}, {"classifier.weight", "classifier.bias"})):
        made = client(params, model="cnn_bn", bn="local")
        hidden = set(made.model.state_dict()) - set(made.shared_names)
        assert more <= hidden and any("running_mean" in name for name in hidden)
        assert FedICONClient.personal(made.model, made.setup.model, FedICONParams(tta=False, lie=False))


@pytest.mark.parametrize(
    "params",
    [
        {"tau": 0.0},
        {"tta_lr": 0.0},
        {"tta_batch": 1},
        {"tta_epochs": 0},
        {"personal_epochs": 0},
        {"classifier_epochs": 0},
        {"projection": "linear"},
        {"classifier_training": "x"},
        {"tta_mode": "batch"},
        {"tta_mode": "online", "tta_epochs": 2},
        {"projection": "mlp", "lie": False},
        {"unknown": 1},
    ],
)
def test_parameters_that_make_no_sense_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FedICONParams(**params)


# --- the way back to FedAvg, determinism, edges ----------------------------------------------------


def fedavg(images: ImageConfig) -> DomainClient:
    return DomainClient(
        build("cnn", C, 0), setup(images=images), Params(), image_set(), lambda domain: image_set(15, seed=1)
    )


@pytest.mark.parametrize("more", [{}, {"classifier_training": "local"}, {"supervised": False}, {"tau": 1.0}])
def test_switched_off_it_is_fedavg_bit_for_bit(more: dict[str, Any]) -> None:
    mine, plain = client(OFF | more, images=PLAIN), fedavg(PLAIN)
    for server_round in (1, 2):
        (arrays, metrics), (wanted, expected) = fit(mine, server_round), fit(plain, server_round)
        assert same(arrays, wanted)
        assert metrics == expected
        asked = {SERVER_ROUND: server_round, "domains": ["a"]}
        assert mine.evaluate(arrays, asked) == plain.evaluate(wanted, asked)


def test_without_lie_one_view_is_taken_of_two() -> None:
    one_view = VIEWS.model_copy(update={"views": 1})
    assert same(fit(client(OFF))[0], fit(fedavg(one_view))[0])


@pytest.mark.parametrize("params", [{}, {"tta": False}, {"lie": False, "tta": True}])
def test_switched_on_it_is_not_fedavg(params: dict[str, Any]) -> None:
    mine, plain = client(params), fedavg(VIEWS.model_copy(update={"views": 1}))
    trained, wanted = fit(mine)[0], fit(plain)[0]
    assert same(trained, wanted) is ("lie" in params)
    asked = {SERVER_ROUND: 1, "domains": ["a"]}
    assert mine.evaluate(wanted, asked)[0] != plain.evaluate(wanted, asked)[0]


@pytest.mark.parametrize("knowledge", [ENCODER, CLASSIFIER])
def test_fit_is_deterministic_and_scoring_client_models_changes_nothing(knowledge: dict[str, NDArray[Any]]) -> None:
    runs = []
    for noise in range(2):
        torch.manual_seed(noise)
        made = client(knowledge=knowledge)
        arrays, metrics = fit(made, ROUND, **({LOCAL_DOMAINS: ["a"]} if noise else {}))
        runs.append((arrays, metrics["loss"]))
    assert same(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]
    assert not same(runs[0][0], fit(client(knowledge=knowledge), ROUND + 1)[0])
    assert not same(runs[0][0], fit(client(knowledge=knowledge, index=INDEX + 1), ROUND)[0])


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("train_set", [image_set(classes=1), image_set(1), image_set(9)])
def test_nodes_with_one_class_or_one_image_train_and_test(train_set: ImageSet, precision: str) -> None:
    made = client(train_set=train_set, precision=precision)
    for knowledge in (ENCODER, CLASSIFIER):
        made.knowledge = dict(knowledge)
        arrays, metrics = fit(made)
        assert all(np.isfinite(array).all() and array.dtype == np.float32 for array in arrays)
        assert np.isfinite(metrics["loss"])
    scores = made.score_test(image_set(9))
    assert np.isfinite(scores.loss_sum) and set(scores.others) == {BEFORE}
