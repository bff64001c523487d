"""Local training: nothing travels, and the node goes on where it was."""

from functools import partial
from typing import Any

import pytest
from support import C, image_set, new_client, same, whole

from fedshift_clients.base import DomainClient
from fedshift_clients.methods.local import LocalClient
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.params import Params
from fedshift_core.wire.names import CORRECT, DOMAINS, LOCAL_CORRECT, LOCAL_DOMAINS, SERVER_ROUND

N = 12
images = partial(image_set, N, classes=C)


def client(kind: Any = LocalClient, model: str = "cnn", bn: str = "average", index: int = 3) -> DomainClient:
    made: DomainClient = new_client(
        kind, train_set=images(), test_set=lambda domain: images(seed=1 + len(domain)), model=model, bn=bn, index=index,
        images=ImageConfig(crop_padding=2), batch_size=4,
    )  # fmt: skip
    return made


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
    arrays = whole(alone)
    for server_round in (1, 2, 3):
        _, _, metrics = mine.fit([], {SERVER_ROUND: server_round})
        arrays, _, expected = alone.fit(arrays, {SERVER_ROUND: server_round})
        assert metrics == expected
        assert same(whole(mine), arrays)


def test_nodes_start_alike_and_part() -> None:
    first, second = client(index=0), client(index=1)
    assert same(whole(first), whole(second))
    for made in (first, second):
        made.fit([], {SERVER_ROUND: 1})
    assert not same(whole(first), whole(second))


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
