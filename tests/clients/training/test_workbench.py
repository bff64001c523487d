"""A process keeps things between clients, and nothing of it is seen in the numbers."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from refusals import refused
from support import image_set, same
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
ONCE = TRAIN.model_copy(update={"epochs": 1})


def bench(train: TrainConfig = TRAIN, name: str = "cnn") -> Workbench:
    return Workbench(build(name, 10, 0), CPU, train, IMAGES)


def client(
    at: Workbench, index: int, train: TrainConfig = TRAIN, kind: type[DomainClient] = DomainClient, **more: Any
) -> DomainClient:
    setup = ClientSetup(0, index, CPU, MODEL, train, IMAGES)
    return kind(at.model, setup, Params(), images_of(index), lambda _: images_of(9), bench=at, **more)


def images_of(seed: int) -> ImageSet:
    return image_set(seed=seed, classes=10)


def fit(at: Workbench, index: int = 0, train: TrainConfig = TRAIN, server_round: int = 1, **more: Any) -> Any:
    given = [tensor.numpy().copy() for tensor in at.initial.values()]
    return client(at, index, train, **more).fit(given, {"server-round": server_round})


def alike(one: Any, other: Any) -> bool:
    return same(one[0], other[0]) and one[1:] == other[1:]


@pytest.mark.parametrize("train", [TRAIN, TRAIN.model_copy(update={"momentum": 0.0})])
def test_second_client_gets_the_numbers_of_a_fresh_process(train: TrainConfig) -> None:
    """And what the first one returned outlives it."""
    used = bench(train)
    first, *_ = fit(used, 0, train)
    kept = [array.copy() for array in first]
    assert alike(fit(used, 1, train), fit(bench(train), 1, train)) and same(first, kept)


def test_nodes_of_one_process_share_a_model_if_they_have_the_same_network() -> None:
    def made(index: int, settings: str = "") -> SplitModel:
        cfg = resolving.resolve({"experiment": "handwritten", "set": f"allocation.share=0.05 {settings}"})
        context = make_context(1, {"partition-id": index, "num-partitions": 4}, {})
        return setup.make_client(cfg, setup.place(cfg, context, setup.SIMULATION), index).model

    assert made(0) is made(1)
    assert made(0) is not made(0, "train.lr=0.5")
    assert made(0, "seed=1") is not made(0)
    per_node = 'model.per_node=["cnn2","cnn3"] method.name=fedproto'
    assert made(0, per_node) is made(2, per_node)
    assert made(0, per_node) is not made(1, per_node)


# --- images on the device --------------------------------------------------------------------------


def test_images_that_do_not_fit_stay_and_older_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    held, sets = DeviceImages(META), [images_of(i) for i in range(3)]
    one = sets[0].x.nbytes
    # Room for two sets, of which each may take half of what is free when it comes.
    monkeypatch.setattr(held, "_free", lambda: 4 * one - 2 * one * len(held._held))
    first, second = (held.get(images)[0] for images in sets[:2])
    assert held.get(sets[0])[0] is first
    held.get(sets[2])  # in the place of the second, which was not used for the longest time
    assert held.get(sets[0])[0] is first and held.get(sets[1])[0] is not second
    monkeypatch.setattr(held, "_free", lambda: one)
    assert [part.device for part in held.get(images_of(7))] == [CPU, META]


# --- small things ----------------------------------------------------------------------------------


def test_what_draws_from_torchs_own_generator_draws_by_seed_node_and_round() -> None:
    def trained(state: int, server_round: int = 1) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(state)
            network = build("cnn", 10, 0)
            network.encoder.append(nn.Dropout(0.5))
            return fit(Workbench(network, CPU, TRAIN, IMAGES), server_round=server_round)[0]

    assert same(trained(1), trained(2)) and not same(trained(1), trained(1, server_round=2))


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


def norm_of(model: SplitModel) -> nn.BatchNorm2d:
    return next(layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d))


@functools.cache
def in_a_fresh_process() -> Any:
    return fit(bench(ONCE, "cnn_bn"), 1, ONCE)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (other_memory, "encoder"),
        (lambda model: setattr(model, "classifier", nn.Linear(64, 10)), "classifier"),
        (lambda model: setattr(model.classifier, "weight", nn.Parameter(torch.ones(10, 64))), "classifier.weight"),
        (lambda model: model.register_module("more", nn.Linear(2, 2)), "added"),
        (lambda model: norm_of(model)._buffers.update(running_mean=None, running_var=None), "running_mean"),
        (lambda model: setattr(norm_of(model), "momentum", 1.0), "momentum"),
        (lambda model: model.encoder.register_forward_hook(lambda module, given, made: made), "added"),
    ],
)
@pytest.mark.parametrize("hook", ["before", "after"])
def test_what_is_replaced_and_not_changed_is_refused_and_put_back(
    change: Callable[[SplitModel], None], found: str, hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = bench(ONCE, "cnn_bn")
    monkeypatch.setattr(Replacing, hook, staticmethod(change))
    with refused(FedShiftError, found):
        fit(used, 0, ONCE, kind=Replacing)
    assert alike(fit(used, 1, ONCE), in_a_fresh_process())


def test_another_model_and_what_an_adaptation_replaces_are_refused() -> None:
    used = bench()
    given = [tensor.numpy().copy() for tensor in used.initial.values()]
    one = client(used, 0)
    one.model = build("cnn", 10, 0)
    with refused(FedShiftError, "self.model"):
        one.fit(given, {"server-round": 1})

    class Zeroes(Adaptation[Params]):
        def adapt(self, client: LocalTrainer, images: NDArray[np.uint8]) -> Iterator[Places]:
            other_memory(client.model)
            yield np.arange(len(images))

    with refused(FedShiftError, "memory"):
        client(used, 0, adaptation=Zeroes(Params())).evaluate(given, {"domains": ["a"]})
