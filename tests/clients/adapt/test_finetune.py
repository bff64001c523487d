"""Fine-tuning: what is scored is the received model after one more local round; training stays as it is."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support import ROUND, C, barred_images, changed, new_client, same

from fedshift_clients.adapt.finetune import Finetune
from fedshift_clients.adapt.params import FinetuneParams
from fedshift_clients.base import DomainClient
from fedshift_clients.models.networks import build
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.wire.names import CORRECT, DOMAINS, LOCAL_CORRECT, LOCAL_DOMAINS, LOSS_SUM, SERVER_ROUND  # fmt: skip
from fedshift_datasets.base import ImageSet


def test_set(domain: str) -> ImageSet:
    return barred_images(20, 1 + len(domain), C)


test_set.__test__ = False  # type: ignore[attr-defined]


def plain(**options: Any) -> DomainClient:
    """FedAvg's client."""
    settings: dict[str, Any] = {"batch_size": 4, "images": ImageConfig(crop_padding=2)}
    return new_client(
        DomainClient,
        train_set=barred_images(12, classes=C),
        test_set=test_set,
        own_sets={"validation": barred_images(8, 9, C)},
        **settings | options,
    )


def client(epochs: int | None = None, **options: Any) -> DomainClient:
    """The same with fine-tuning, of so many epochs."""
    return plain(adaptation=Finetune(FinetuneParams(epochs=epochs)), **options)


def received(of: DomainClient) -> list[NDArray[Any]]:
    """What the server sends: some weights, the same for every client of the network, whatever it did before."""
    rng, state = np.random.default_rng(7), of.model.state_dict() | build(of.setup.model.name, C, 1).state_dict()
    arrays = [state[name].numpy() for name in of.shared_names]
    return [a if a.dtype == np.int64 else a + rng.normal(0, 0.01, a.shape).astype(np.float32) for a in arrays]


def asked(*domains: str, **more: Any) -> dict[str, Any]:
    return {SERVER_ROUND: ROUND, DOMAINS: list(domains), **more}


# --- what is scored --------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "bn", "epochs"), [("cnn", "average", 1), ("cnn_bn", "local", None)])
def test_scores_are_those_of_the_node_s_next_local_round(model: str, bn: str, epochs: int | None) -> None:
    made = client(epochs, model=model, bn=bn)
    trained = plain(model=model, bn=bn, epochs=epochs or 2)
    given = received(made)
    _, _, metrics = made.evaluate(given, asked("a", "bb"))
    _, _, expected = trained.fit(given, {SERVER_ROUND: ROUND + 1, LOCAL_DOMAINS: ["a", "bb"]})
    for domain in ("a", "bb"):
        assert metrics[CORRECT + domain] == expected[LOCAL_CORRECT + domain]
        assert metrics[LOSS_SUM + domain] == trained.score(test_set(domain))[1]  # to the last bit


# --- nothing of it stays ---------------------------------------------------------------------------


def test_training_is_fedavg_bit_for_bit_whatever_is_scored_in_between() -> None:
    mine, other = (make(model="cnn_bn", bn="local") for make in (client, plain))
    arrays = received(mine)
    for server_round in (1, 2, 3):
        wanted, _, expected = other.fit(arrays, {SERVER_ROUND: server_round})
        arrays, _, metrics = mine.fit(arrays, {SERVER_ROUND: server_round})
        assert same(arrays, wanted) and metrics == expected
        mine.evaluate(arrays, asked("a"))
        assert not changed(dict(mine.memory), dict(other.memory))
