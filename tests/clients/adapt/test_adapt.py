"""Adaptation over any method: it sees test images and never labels, and leaves no trace."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from refusals import refused
from support import IMAGES, image_set, new_client, shared

from fedshift_app.features.client_scores.node import local_scores
from fedshift_clients.adapt.base import Adaptation, Places
from fedshift_clients.adapt.fedicon import ContrastAdaptation
from fedshift_clients.adapt.params import ContrastParams
from fedshift_clients.base import DomainClient
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.errors import ConfigError
from fedshift_core.params import Params

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
