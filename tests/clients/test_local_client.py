"""Local training: nothing travels, and the node goes on where it was."""

from functools import partial
from typing import Any

from support import C, image_set, new_client

from fedshift_clients.base import DomainClient
from fedshift_clients.methods.local import LocalClient
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.wire.names import CORRECT, DOMAINS, LOCAL_CORRECT, LOCAL_DOMAINS, SERVER_ROUND

N = 12
images = partial(image_set, N, classes=C)


def client(kind: Any = LocalClient, model: str = "cnn", bn: str = "average", index: int = 3) -> DomainClient:
    made: DomainClient = new_client(
        kind, train_set=images(), test_set=lambda domain: images(seed=1 + len(domain)), model=model, bn=bn, index=index,
        images=ImageConfig(crop_padding=2), batch_size=4,
    )  # fmt: skip
    return made


def test_a_test_scores_the_node_s_own_model() -> None:
    made = client()
    fresh = made.evaluate([], {SERVER_ROUND: 1, DOMAINS: ["a"]})  # never trained: the initial weights
    _, _, metrics = made.fit([], {SERVER_ROUND: 1, LOCAL_DOMAINS: ["a", "bb"]})
    loss, images, scores = made.evaluate([], {SERVER_ROUND: 1, DOMAINS: ["a", "bb"]})
    assert images == 2 * N
    assert loss != fresh[0]
    for domain in ("a", "bb"):
        assert scores[CORRECT + domain] == metrics[LOCAL_CORRECT + domain]
