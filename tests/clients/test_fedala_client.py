"""FedALA on a node: the tensors that are mixed, the steps of their weights, its memory."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from slow_terms import cross_entropy, softmax
from support import features_of, fit, new_client, shared, weights

from fedshift_clients.methods.fedala import CALM, LAST, OWN, TIMES, WEIGHTS, FedALAClient
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.wire.names import DOMAINS, SERVER_ROUND

TOP = ["classifier.weight", "classifier.bias"]


client = partial(new_client, FedALAClient, images=ImageConfig(), epochs=1)


def from_server(of: FedALAClient, seed: int = 7) -> list[NDArray[Any]]:
    """What a server might send next: the node's arrays, each a little off."""
    rng = np.random.default_rng(seed)
    arrays = shared(of)
    return [a if a.dtype == np.int64 else a + rng.normal(0, 0.05, a.shape).astype(np.float32) for a in arrays]


def trained(params: dict[str, Any] | None = None, rounds: int = 2, **options: Any) -> FedALAClient:
    """A client that has trained; after two rounds its first aggregation is over."""
    made = client(params, **options)
    for server_round in range(1, rounds + 1):
        fit(made, server_round, from_server(made, server_round) if server_round > 1 else None)
    return made


def slow_epochs(made: FedALAClient, sent: list[NDArray[Any]], most: int) -> tuple[Any, Any, int]:
    """Algorithm 1 for the linear head in NumPy: gradients of a softmax by hand, one batch after another.

    Returns:
        W and the mixture of the head's matrix, and after how many epochs the loss of the last batch was calm.
    """
    given, times = dict(zip(made.shared_names, sent, strict=True)), int(made.memory[TIMES])
    w, wb, a, ab = (made.memory[prefix + name].astype(np.float64) for prefix in (OWN, WEIGHTS) for name in TOP)
    d, db = given[TOP[0]] - w, given[TOP[1]] - wb
    body = client(model=made.setup.model.name).model
    body.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in given.items()})
    held, result = made._sample(times), list[float]()
    while len(result) < most and not (len(result) > LAST and np.std(result[-LAST:]) < CALM):
        draws = [made.torch_rng(purpose, times) for purpose in ("ala-order", "x", "x")]
        for part in made.augmented_batches(held, made.setup.train.batch_size, 0, *draws):
            z, y = features_of(body, part.x), part.y.numpy()
            logits = z @ (w + d * a).T + wb + db * ab
            slope = (softmax(logits) - np.eye(len(wb))[y]) / len(z)
            a = np.clip(a - made.params.eta * (slope.T @ z) * d, 0, 1)
            ab = np.clip(ab - made.params.eta * slope.sum(axis=0) * db, 0, 1)
        result.append(cross_entropy(logits, y))
    return a, w + d * a, len(result)


@pytest.mark.parametrize("eta", [1.0, 20.0])
def test_the_mixture_of_a_later_round_against_numpy(eta: float) -> None:
    made = trained({"eta": eta, "share": 0.6})
    sent = from_server(made)
    wanted, mixture, _ = slow_epochs(made, sent, 1)
    assert np.abs(wanted - 1).max() > 0
    np.testing.assert_allclose(_weights_after(made, sent), wanted, atol=1e-4)
    np.testing.assert_allclose(weights(made)[TOP[0]], mixture, atol=1e-4)


def test_the_first_aggregation_goes_on_until_its_losses_are_calm() -> None:
    made = trained(rounds=1)
    sent = from_server(made)
    wanted, _, epochs = slow_epochs(made, sent, 100)
    assert LAST < epochs < 100
    np.testing.assert_allclose(_weights_after(made, sent), wanted, atol=1e-3)
    made.params = made.params.model_copy(update={"most_epochs": 3})
    np.testing.assert_allclose(_weights_after(made, sent), slow_epochs(made, sent, 3)[0], atol=1e-4)


def _weights_after(made: FedALAClient, sent: list[NDArray[Any]]) -> NDArray[Any]:
    made.evaluate(sent, {SERVER_ROUND: 2, DOMAINS: []})
    return made._weights[TOP[0]].numpy()


def test_lower_layers_and_buffers_are_the_global_ones_and_all_learn_afterwards() -> None:
    made = trained(model="cnn_bn")
    sent = from_server(made)
    made.take(sent)
    assert {name for name, a, b in zip(made.shared_names, sent, shared(made), strict=True) if (a != b).any()} == set(
        TOP
    )
    assert all(parameter.requires_grad for parameter in made.model.parameters())
