"""Images that are scored, and arrays that are viewed for it."""

import functools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from support import fedavg, fit, image_set, new_client, same, shared
from torch import Tensor

from fedshift_clients.base import DomainClient
from fedshift_clients.training.arrays import own_array
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


def test_it_changes_nothing_and_tells_nothing_unasked() -> None:
    (arrays, result), (plain, metrics) = asked(fedavg(model="cnn_bn"), "loss", "train"), fit(fedavg(model="cnn_bn"))
    assert same(arrays, plain)
    assert set(result) - set(metrics) == {LOCAL_RECEIVED, LOCAL_TRAINED}
    assert {name: result[name] for name in metrics} == metrics
    assert set(asked(fedavg(), "loss", "validation")[1]) == set(metrics)  # it has no such part


# --- Which test images a node scores: all, a part, or a sample that is the same in all rounds and on all nodes ---

SEED = 3


def places(number: int, seed: int = SEED, **config: Any) -> list[list[int]]:
    requested = asked_images(lambda domain: image_set(number, 2, number), config, functools.partial(generator, seed))
    return [test.y.tolist() for _, test in requested]


@given(number=st.integers(2, 60), data=st.data())
def test_parts_of_a_sample_are_the_sample(number: int, data: st.DataObject) -> None:
    drawn = data.draw(st.integers(1, number))
    cut = data.draw(st.integers(0, drawn))
    whole, first, second = (
        places(number, domains=["a"], drawn=[drawn], starts=[start], stops=[stop])[0]
        for start, stop in ((0, drawn), (0, cut), (cut, drawn))
    )
    assert first + second == whole == sorted(set(whole)) and len(whole) == drawn


def test_a_sample_depends_on_seed_and_domain() -> None:
    config = {"domains": ["a", "b", "a"], "drawn": [8] * 3, "starts": [0] * 3, "stops": [8] * 3}
    first, second, again = places(50, **config)
    assert first == again != second
    assert places(50, seed=SEED + 1, **config)[0] != first


# --- Read-only arrays as tensors ---


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


def test_logits_of_another_width_are_refused() -> None:
    class Narrow(DomainClient):
        def predict(self, x: Tensor) -> Tensor:
            return super().predict(x)[:, 1:]

    made = new_client(Narrow)
    with refused(FedShiftError, "predict"):
        made.evaluate(shared(made), {SERVER_ROUND: 1, DOMAINS: ["a"]})


def test_an_own_array_is_in_c_order_and_stays() -> None:
    tensor = torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
    array = own_array(tensor)
    tensor.zero_()
    assert array.flags.c_contiguous and array.flags.writeable
    np.testing.assert_array_equal(array, np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4))
