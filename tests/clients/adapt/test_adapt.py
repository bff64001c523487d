"""Adaptation over any method: it sees test images and never labels, and leaves no trace."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from refusals import refused
from support import (
    IMAGES,
    INDEX,
    ROUND,
    SEED,
    barred_images,
    changed,
    image_set,
    new_client,
    parts_of,
    scored_weights,
    shared,
    weights,
)
from torch import Tensor

from fedshift_app.features.client_scores.node import local_scores
from fedshift_clients.adapt.base import Adaptation, Places
from fedshift_clients.adapt.fedicon import ContrastAdaptation
from fedshift_clients.adapt.params import ContrastParams
from fedshift_clients.base import DomainClient
from fedshift_clients.images.augment import Pipeline
from fedshift_clients.losses.contrast import instance_contrast
from fedshift_clients.methods.fedicon import FedICONClient
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.params import Params
from fedshift_core.seeding import torch_seed

TEST = image_set(23, seed=5)
ASKED: dict[str, Any] = {"server-round": 2, "domains": ["a"]}


def client(adaptation: Adaptation, kind: type[DomainClient] = DomainClient, **options: Any) -> DomainClient:
    return new_client(kind, test_set=lambda domain: TEST, adaptation=adaptation, **options)


def reachable(start: object) -> list[NDArray[Any]]:
    """Return all arrays that attributes, containers and closures lead to from an object."""
    seen: dict[int, object] = {}
    waiting, arrays = [start], []
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | torch.Tensor | str):
            continue
        seen[id(one)] = one
        if isinstance(one, np.ndarray):
            arrays.append(one)
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
        else:
            waiting += vars(one).values() if hasattr(one, "__dict__") else ()
            waiting += [cell.cell_contents for cell in getattr(one, "__closure__", None) or ()]
            waiting += [getattr(one, "__self__", None), *(getattr(one, "__defaults__", None) or ())]
    return arrays


class Greedy(Adaptation):
    """Looks for labels of what is scored wherever its code runs."""

    labels: ClassVar[tuple[NDArray[np.int64], ...]] = ()
    looked = 0

    def received(self, client: DomainClient) -> None:
        for label in self.labels:
            assert not any(np.shares_memory(label, array) for array in reachable(client))
        assert not client.own_sets
        with pytest.raises(RuntimeError):
            client.test_set("a")
        self.looked += 1

    def adapt(self, client: DomainClient, images: NDArray[np.uint8]) -> Iterator[Places]:
        for places in np.array_split(np.arange(len(images)), 2):
            self.received(client)
            yield places
        self.received(client)

    def predict(self, client: DomainClient, x: torch.Tensor) -> torch.Tensor:
        self.received(client)
        return client.forward(x)[1]


def test_no_code_of_an_adaptation_can_reach_a_label_of_what_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    test, own, held = (image_set(n, seed=n) for n in (23, 7, 5))
    greedy, sets = Greedy(Params()), {"test": own, "validation": held}
    monkeypatch.setattr(Greedy, "labels", (test.y, own.y, held.y))  # of the class: the search looks at objects
    made = new_client(DomainClient, test_set=lambda domain: test, adaptation=greedy, own_sets=sets)
    for label in (own.y, test.y):  # the search finds what is there
        assert any(np.shares_memory(label, array) for array in reachable(made))
    _, images, metrics = made.evaluate(shared(made), {**ASKED, "validation": True})
    assert (images, metrics["count/a"], metrics["validation-count"]) == (23, 23, 5)
    assert greedy.looked >= 9 and made.test_set("a") is test and made.own_sets is sets
    local_scores(made, ["a"])


def test_labels_are_there_again_after_an_adaptation_that_fails() -> None:
    class Broken(Adaptation):
        def adapt(self, client: DomainClient, images: NDArray[np.uint8]) -> Iterator[Places]:
            raise ValueError("broken")
            yield

    made = client(Broken(Params()))
    with pytest.raises(ValueError, match="broken"):
        made.score_test(TEST)
    assert made.test_set("a") is TEST


@pytest.mark.parametrize("places", [[0, 0], [0]])
def test_each_image_must_be_scored_once(places: list[int]) -> None:
    class Wrong(Adaptation):
        def adapt(self, client: DomainClient, images: NDArray[np.uint8]) -> Iterator[Places]:
            yield np.array(places, dtype=np.int64)

    with refused(RuntimeError, "Wrong"):
        client(Wrong(Params())).score_test(TEST)


def test_a_contrast_of_images_without_augmentation_is_refused() -> None:
    ContrastAdaptation(ContrastParams()).check(IMAGES)
    with refused(ConfigError, "augmentation"):
        ContrastAdaptation(ContrastParams(crop_padding=0, flip=False)).check(IMAGES)
    for own in ({"flip": True}, {"resized_crop": (0.5, 1.0)}, {"grayscale": 0.2}, {"jitter": (0.4, 0, 0, 0)}):
        ContrastAdaptation(ContrastParams.model_validate(own)).check(ImageConfig())


# --- FedICON's ----------------------------------------------------------------------------------------------


BEFORE = "before-adaptation"
OWN_VIEWS: dict[str, Any] = {
    "crop_padding": 2, "resized_crop": (0.5, 1.0), "jitter": (0.4, 0.4, 0.4, 0.1), "grayscale": 0.2,
}  # fmt: skip
VIEWS = ImageConfig(**OWN_VIEWS, views=2, eval_batch=33)

Settings = dict[str, Any]


def contrasting(
    adapt: Settings | None = None, params: Settings | None = None, kind: type[DomainClient] = FedICONClient,
    **options: Any,
) -> DomainClient:  # fmt: skip
    """A contrasting that adapts; FedICON's makes its classifier personal first."""
    made = new_client(
        kind, params, train_set=barred_images(), test_set=lambda domain: barred_images(15, seed=1),
        adaptation=ContrastAdaptation(ContrastParams(**adapt or {})), **{"images": VIEWS} | options,
    )  # fmt: skip
    made.server_round = ROUND
    return made


def check_close(found: Arrays, expected: Arrays) -> None:
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-5, err_msg=name)


def slow_adaptation(made: DomainClient, images: NDArray[np.uint8], p: ContrastParams) -> Arrays:
    """Plain gradient descent on Eq. 5, the views drawn batch after batch as the node draws them."""
    encoder = copy.deepcopy(made.model.encoder)
    head = made.model.get_submodule("projection") if hasattr(made.model, "projection") else torch.nn.Identity()
    pipeline = Pipeline(VIEWS, torch.device("cpu"))
    velocity: list[Tensor] = []
    order, first, second = (
        torch.Generator().manual_seed(torch_seed(SEED, f"fedicon-tta-{name}", INDEX, ROUND))
        for name in ("order", "first", "second")
    )
    for _ in range(p.epochs):
        for index in torch.randperm(len(images), generator=order).split(p.batch_size):  # type: ignore[no-untyped-call]
            x = torch.from_numpy(images)[index]
            one, other = pipeline.train(x, first), pipeline.train(x, second)
            loss = instance_contrast(head(encoder(one)), head(encoder(other)), p.tau)
            tuned = list(encoder.parameters())
            pulls = [grad + p.weight_decay * w for w, grad in zip(tuned, torch.autograd.grad(loss, tuned), strict=True)]
            velocity = [p.momentum * v + pull for v, pull in zip(velocity, pulls, strict=True)] if velocity else pulls
            for weight, v in zip(tuned, velocity, strict=True):
                weight.data -= p.lr * v
    return {f"encoder.{name}": tensor.numpy() for name, tensor in encoder.state_dict().items()}


@pytest.mark.parametrize(
    ("n", "adapt", "kind", "params"),
    [
        (12, {"batch_size": 12}, FedICONClient, {}),
        (12, {"batch_size": 5, "epochs": 2}, FedICONClient, {"projection": "mlp"}),
        (5, {"batch_size": 32}, DomainClient, {}),
        (12, {"batch_size": 4, "momentum": 0.5, "weight_decay": 0.1}, FedICONClient, {}),
    ],
)
def test_adaptation_is_descent_on_the_contrast_of_the_test_images(
    n: int, adapt: Settings, kind: type[DomainClient], params: Settings
) -> None:
    made, test = contrasting({"lr": 0.05, "tau": 0.2} | adapt, params, kind), barred_images(n, seed=1)
    before = weights(made)
    expected = slow_adaptation(made, test.x, ContrastParams(**{"lr": 0.05, "tau": 0.2} | adapt))
    scores, (unadapted, adapted) = scored_weights(made, test)
    assert parts_of(changed(unadapted, adapted)) == {"encoder"}  # the classifier is fixed
    assert parts_of(changed(before, unadapted)) == ({"classifier"} if kind is FedICONClient else set())  # personal
    check_close(adapted, expected)
    for state, found in ((adapted, (scores.correct, scores.loss_sum)), (unadapted, scores.others[BEFORE])):
        made.model.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        assert found in (made.score(test), made.score(test)[0])


@pytest.mark.parametrize(
    ("mode", "params"), [("transductive", {}), ("online", {"lie": False}), ("online", {"classifier_training": "local"})]
)
def test_scoring_leaves_the_model_as_found_and_starts_again(mode: str, params: Settings) -> None:
    made, test = contrasting({"lr": 0.05, "mode": mode}, params, model="cnn_bn"), barred_images(12, seed=1)
    before = weights(made)
    torch.manual_seed(3)
    rng = torch.get_rng_state()
    first = made.score_test(test)
    assert not changed(before, weights(made)) and made.memory == {}
    made.score_test(barred_images(7, seed=5))  # what was scored in between does not matter
    assert made.score_test(test) == first and torch.equal(torch.get_rng_state(), rng)
