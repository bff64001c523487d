"""Images that are scored, and arrays that are viewed for it."""

import functools
from typing import Any

import numpy as np
import pytest
from refusals import refused
from support import fedavg, image_set, new_client, shared
from torch import Tensor

from fedshift_clients.base import DomainClient
from fedshift_clients.training.eval_slices import asked_images
from fedshift_core.errors import FedShiftError
from fedshift_core.seeding import generator
from fedshift_core.wire.names import DOMAINS, GAP, LOCAL_RECEIVED, LOCAL_TRAINED, SERVER_ROUND
from fedshift_datasets.listing import joined

# --- Generalisation gaps of a node's own images: before and after, and no trace of it ---


def asked(of: DomainClient, *how: str) -> tuple[list[Any], dict[str, Any]]:
    arrays, _, metrics = of.fit(shared(of), {SERVER_ROUND: 1, GAP: list(how)})
    return arrays, metrics


@pytest.mark.parametrize("where", ["train", "validation"])
def test_both_models_on_its_own_images(where: str) -> None:
    held = image_set(9, seed=5)
    made = fedavg(own_sets={"validation": held}, test_set=lambda domain: image_set() if domain == "train" else held)
    given = shared(made)
    arrays, metrics = asked(made, "loss", where)
    for name, weights in ((LOCAL_RECEIVED, given), (LOCAL_TRAINED, arrays)):
        loss, number, scores = made.evaluate(weights, {SERVER_ROUND: 1, DOMAINS: [where]})
        assert metrics[name] == pytest.approx(loss)
        again = fedavg(own_sets={"validation": held})
        share = again.fit(weights, {SERVER_ROUND: 1, GAP: ["accuracy", where]})[2][LOCAL_RECEIVED]
        assert share == scores[f"correct/{where}"] / number


# --- Which test images a node scores: all, a part, or a sample that is the same in all rounds and on all nodes ---

SEED = 3


def places(number: int, seed: int = SEED, **config: Any) -> list[list[int]]:
    requested = asked_images(lambda domain: image_set(number, 2, number), config, functools.partial(generator, seed))
    return [test.y.tolist() for _, test in requested]


def test_a_sample_depends_on_seed_and_domain() -> None:
    config = {"domains": ["a", "b", "a"], "drawn": [8] * 3, "starts": [0] * 3, "stops": [8] * 3}
    first, second, again = places(50, **config)
    assert first == again != second
    assert places(50, seed=SEED + 1, **config)[0] != first


# --- Read-only arrays as tensors ---


def test_logits_of_another_width_are_refused() -> None:
    class Narrow(DomainClient):
        def predict(self, x: Tensor) -> Tensor:
            return super().predict(x)[:, 1:]

    made = new_client(Narrow)
    with refused(FedShiftError, "predict"):
        made.evaluate(shared(made), {SERVER_ROUND: 1, DOMAINS: ["a"]})


def test_images_and_labels_of_a_node_are_only_read() -> None:
    images = image_set()
    client = new_client(DomainClient, train_set=images, test_set=lambda _: images.select(np.arange(4)))
    for held in (client.train_set, client.test_set("a"), joined([images, images]), images.select(slice(3))):
        for array in (held.x, held.y):
            with pytest.raises(ValueError, match="read-only"):  # NumPy's
                array[...] = 0
    for _, y in client.plain_batches(images):
        y.zero_()
    assert images.y.any()
