"""Local training: nothing travels, and the node goes on where it was."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from clients.base import ClientSetup, DomainClient
from clients.local import LocalClient
from clients.models.networks import build
from clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from datasets.base import ImageSet
from fedshift_wire.names import CORRECT, DOMAINS, LOCAL_CORRECT, LOCAL_DOMAINS, SERVER_ROUND, Params

C, N = 4, 12


def image_set(n: int = N, seed: int = 0) -> ImageSet:
    x = np.random.default_rng(seed).integers(0, 256, size=(n, 32, 32, 3), dtype=np.uint8)
    return ImageSet(x, np.arange(n, dtype=np.int64) % C)


def client(kind: Any = LocalClient, model: str = "cnn", bn: str = "average", index: int = 3) -> DomainClient:
    setup = ClientSetup(
        seed=11, index=index, device=torch.device("cpu"), model=ModelConfig.model_validate({"name": model, "bn": bn}),
        train=TrainConfig(epochs=2, batch_size=4, lr=0.05, precision="float32"), images=ImageConfig(crop_padding=2),
    )  # fmt: skip
    made: DomainClient = kind(
        build(model, C, 0), setup, Params(), image_set(), lambda domain: image_set(seed=1 + len(domain))
    )
    return made


def weights(of: DomainClient) -> list[NDArray[Any]]:
    return [tensor.numpy().copy() for tensor in of.model.state_dict().values()]


def same(a: list[NDArray[Any]], b: list[NDArray[Any]]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("model", "bn"), [("cnn", "average"), ("cnn_bn", "average"), ("cnn_bn", "freeze")])
def test_nothing_travels_and_nodes_score_their_own_models(model: str, bn: str) -> None:
    made = client(model=model, bn=bn)
    assert made.shared_names == []
    arrays, number, _ = made.fit([], {SERVER_ROUND: 1})
    assert (arrays, number) == ([], N)
    assert made.contribution() == {}
    assert LocalClient.personal(made.model, made.setup.model, Params())


@pytest.mark.parametrize("model", ["cnn", "cnn_bn"])
def test_it_is_fedavg_of_a_single_node_bit_for_bit(model: str) -> None:
    """A federation of one averages nothing: the same epochs, the same order, the same weights."""
    mine, alone = client(model=model), client(DomainClient, model)
    arrays = weights(alone)
    for server_round in (1, 2, 3):
        _, _, metrics = mine.fit([], {SERVER_ROUND: server_round})
        arrays, _, expected = alone.fit(arrays, {SERVER_ROUND: server_round})
        assert metrics == expected
        assert same(weights(mine), arrays)


def test_a_client_made_anew_goes_on_from_its_memory() -> None:
    """Both engines make a client for every message."""
    whole = client(model="cnn_bn")
    whole.fit([], {SERVER_ROUND: 1})
    anew = client(model="cnn_bn")
    anew.memory = {name: array.copy() for name, array in whole.memory.items()}
    for made in (whole, anew):
        made.fit([], {SERVER_ROUND: 2})
    assert same(weights(anew), weights(whole))


def test_nodes_start_alike_and_part() -> None:
    first, second = client(index=0), client(index=1)
    assert same(weights(first), weights(second))
    for made in (first, second):
        made.fit([], {SERVER_ROUND: 1})
    assert not same(weights(first), weights(second))


def test_a_test_scores_the_node_s_own_model() -> None:
    made = client()
    fresh = made.evaluate([], {SERVER_ROUND: 1, DOMAINS: ["a"]})  # never trained: the initial weights
    _, _, metrics = made.fit([], {SERVER_ROUND: 1, LOCAL_DOMAINS: ["a", "bb"]})
    loss, images, scores = made.evaluate([], {SERVER_ROUND: 1, DOMAINS: ["a", "bb"]})
    assert images == 2 * N
    assert loss != fresh[0]
    for domain in ("a", "bb"):
        assert scores[CORRECT + domain] == metrics[LOCAL_CORRECT + domain]


def test_nodes_may_have_different_networks() -> None:
    assert LocalClient.heterogeneous
    for model in ("cnn2", "resnet10"):
        assert client(model=model).shared_names == []
