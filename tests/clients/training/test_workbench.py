"""A process keeps things between clients, and nothing of it is seen in the numbers."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from refusals import refused
from torch import nn

from fedshift_app.config import resolving
from fedshift_app.flower.internals import make_context
from fedshift_app.node import setup
from fedshift_clients.adapt.base import Adaptation, Places
from fedshift_clients.base import ClientSetup, DomainClient
from fedshift_clients.models.networks import SplitModel, build
from fedshift_clients.training.model_cache import DeviceImages, Workbench
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_clients.training.trainer import LocalTrainer
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FedShiftError
from fedshift_core.params import Params
from fedshift_datasets.base import ImageSet

CPU, META = torch.device("cpu"), torch.device("meta")
MODEL, TRAIN, IMAGES = ModelConfig(name="cnn"), TrainConfig(epochs=2, batch_size=8, lr=0.05), ImageConfig(flip=True)


def image_set(seed: int, n: int = 20) -> ImageSet:
    rng = np.random.default_rng(seed)
    return ImageSet(rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, n))


def bench(train: TrainConfig = TRAIN, name: str = "cnn") -> Workbench:
    return Workbench(build(name, 10, 0), CPU, train, IMAGES)


def client(
    at: Workbench, index: int, train: TrainConfig = TRAIN, kind: type[DomainClient] = DomainClient, **more: Any
) -> DomainClient:
    setup = ClientSetup(0, index, CPU, MODEL, train, IMAGES)
    return kind(at.model, setup, Params(), image_set(index), lambda _: image_set(9), bench=at, **more)


def weights(at: Workbench) -> list[np.ndarray[Any, Any]]:
    return [t.numpy().copy() for t in at.initial.values()]


@pytest.mark.parametrize("train", [TRAIN, TRAIN.model_copy(update={"momentum": 0.0})])
def test_second_client_gets_the_numbers_of_a_fresh_process(train: TrainConfig) -> None:
    used = bench(train)
    client(used, 0, train).fit(weights(used), {"server-round": 1})
    after, fresh = (client(at, 1, train).fit(weights(at), {"server-round": 1}) for at in (used, bench(train)))
    assert all(np.array_equal(a, b) for a, b in zip(after[0], fresh[0], strict=True))
    assert after[1:] == fresh[1:]


def test_what_fit_returned_outlives_the_next_client() -> None:
    used = bench()
    first, *_ = client(used, 0).fit(weights(used), {"server-round": 1})
    kept = [array.copy() for array in first]
    client(used, 1).fit(weights(used), {"server-round": 2})
    assert all(np.array_equal(a, b) for a, b in zip(first, kept, strict=True))


def test_nodes_of_one_process_share_a_model_if_they_have_the_same_network() -> None:
    def made(index: int, *settings: str) -> DomainClient:
        cfg = resolving.resolve({"experiment": "handwritten", "set": "allocation.share=0.05 " + " ".join(settings)})
        context = make_context(1, {"partition-id": index, "num-partitions": 4}, {})
        return setup.make_client(cfg, setup.place(cfg, context, setup.SIMULATION), index)

    assert made(0).model is made(1).model
    assert made(0).model is not made(0, "train.lr=0.5").model
    assert made(0, "seed=1").model is not made(0).model
    per_node = 'model.per_node=["cnn2","cnn3"]', "method.name=fedproto"
    assert made(0, *per_node).model is made(2, *per_node).model
    assert made(0, *per_node).model is not made(1, *per_node).model


# --- images on the device --------------------------------------------------------------------------


def test_images_that_do_not_fit_stay_and_older_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    held, sets = DeviceImages(META), [image_set(i) for i in range(3)]
    one = sets[0].x.nbytes
    # Room for two sets, of which each may take half of what is free when it comes.
    monkeypatch.setattr(held, "_free", lambda _: 4 * one - 2 * one * len(held._held))
    first, second = (held.get(images)[0] for images in sets[:2])
    assert held.get(sets[0])[0] is first
    held.get(sets[2])  # in the place of the second, which was not used for the longest time
    assert held.get(sets[0])[0] is first
    assert held.get(sets[1])[0] is not second
    monkeypatch.setattr(held, "_free", lambda _: one)
    x, y = held.get(image_set(7))
    assert (x.device, y.device) == (CPU, META)


def test_images_on_a_device_go_with_the_arrays_that_they_are_copies_of() -> None:
    held, whole = DeviceImages(META), image_set(0)
    kept = held.get(ImageSet(whole.x[:10], whole.y[:10]))[0]
    for _ in range(5):
        held.get(whole.select(np.arange(7)))  # as a node selects its images, for each message
        held.get(ImageSet(whole.x, np.zeros(len(whole), np.int64)))  # as an adaptation hides labels
    assert len(held._held) <= 3
    assert held.get(ImageSet(whole.x[:10], whole.y[:10]))[0] is kept


# --- small things ----------------------------------------------------------------------------------


def test_what_draws_from_torchs_own_generator_draws_by_seed_node_and_round() -> None:
    def trained(state: int, server_round: int = 1) -> list[np.ndarray[Any, Any]]:
        with torch.random.fork_rng():
            torch.manual_seed(state)
            network = build("cnn", 10, 0)
            network.encoder.append(torch.nn.Dropout(0.5))
            at = Workbench(network, CPU, TRAIN, IMAGES)
            return list(client(at, 0).fit(weights(at), {"server-round": server_round})[0])

    first, second, later = trained(1), trained(2), trained(1, server_round=2)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, later, strict=True))


class Replacing(DomainClient):
    """Puts something in the place of a part of the model before or after training."""

    before: ClassVar[Callable[[SplitModel], object]] = staticmethod(lambda model: None)
    after: ClassVar[Callable[[SplitModel], object]] = staticmethod(lambda model: None)

    def start_round(self, server_round: int) -> None:
        type(self).before(self.model)

    def finish_round(self, server_round: int) -> Arrays:
        type(self).after(self.model)
        return {}


def other_memory(model: SplitModel) -> None:
    for weight in model.parameters():
        weight.data = weight.data.clone()


def another_layer(model: SplitModel) -> None:
    model.classifier = nn.Linear(model.feature_dim, model.num_classes)


def another_weight(model: SplitModel) -> None:
    model.classifier.weight = nn.Parameter(model.classifier.weight.detach().clone())


def one_more_layer(model: SplitModel) -> None:
    model.register_module("more", nn.Linear(2, 2))


def no_statistics(model: SplitModel) -> None:
    layer = next(layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d))
    layer.running_mean = layer.running_var = None


def other_momentum(model: SplitModel) -> None:
    next(layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)).momentum = 1.0


def a_hook(model: SplitModel) -> None:
    model.encoder.register_forward_hook(lambda module, given, made: made)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (other_memory, "encoder"),
        (another_layer, "classifier"),
        (another_weight, "classifier.weight"),
        (one_more_layer, "more"),
        (no_statistics, "running_mean"),
        (other_momentum, "momentum"),
        (a_hook, "encoder"),
    ],
)
@pytest.mark.parametrize("hook", ["before", "after"])
def test_what_is_replaced_and_not_changed_is_refused_and_put_back(
    change: Callable[[SplitModel], None], found: str, hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, fresh = bench(name="resnet10"), bench(name="resnet10")
    monkeypatch.setattr(Replacing, hook, staticmethod(change))
    with refused(FedShiftError, found):
        client(used, 0, kind=Replacing).fit(weights(used), {"server-round": 1})
    after, expected = (client(at, 1).fit(weights(at), {"server-round": 1}) for at in (used, fresh))
    assert all(np.array_equal(a, b) for a, b in zip(after[0], expected[0], strict=True))
    assert after[1:] == expected[1:]


def test_another_model_and_what_an_adaptation_replaces_are_refused() -> None:
    used = bench()
    one = client(used, 0, kind=Replacing)
    one.model = build("cnn", 10, 0)
    with refused(FedShiftError, "self.model"):
        one.fit(weights(used), {"server-round": 1})

    class Zeroes(Adaptation[Params]):
        def adapt(self, client: LocalTrainer, images: NDArray[np.uint8]) -> Iterator[Places]:
            other_memory(client.model)
            yield np.arange(len(images))

    adapted = client(used, 0, adaptation=Zeroes(Params()))
    with refused(FedShiftError, "memory"):
        adapted.evaluate(weights(used), {"domains": ["a"]})
