"""FedRep on a node: head and body by turns, against two loops by hand."""

import copy
from typing import Any

import numpy as np
import torch
from support import fedavg, fit, new_client, parts_of, weights

from fedshift_clients.base import DomainClient
from fedshift_clients.methods.fedrep import FedRepClient
from fedshift_clients.training.batches import Batch


def client(kind: Any = FedRepClient, params: dict[str, Any] | None = None, **options: Any) -> Any:
    made = new_client(kind, params, **options)
    made.seen = []
    return made


def test_a_round_is_that_of_two_loops_by_hand() -> None:
    """SGD without momentum on the head, then on the body, with the same batches."""
    options: dict[str, Any] = {"epochs": 3, "momentum": 0.0, "weight_decay": 0.01}
    made, plain, copies = client(**options), client(DomainClient, **options), list[Batch]()
    plain.loss = lambda batch: copies.append(copy.deepcopy(batch)) or DomainClient.loss(plain, batch)
    model = client(DomainClient).model.train()
    fit(plain)
    fit(made)
    for batch in copies:
        part = model.classifier if batch.epoch < 2 else model.encoder
        loss = torch.nn.functional.cross_entropy(model.classifier(model.encoder(batch.x)), batch.y)
        grads = torch.autograd.grad(loss, list(part.parameters()))
        with torch.no_grad():
            for p, grad in zip(part.parameters(), grads, strict=True):
                p -= 0.05 * (grad + 0.01 * p)
    for name, tensor in model.state_dict().items():
        np.testing.assert_allclose(weights(made)[name], tensor.numpy(), rtol=1e-4, atol=1e-6)


def test_without_turns_it_is_fedper_which_trains_as_fedavg_and_keeps_the_head() -> None:
    alone = client(params={"by_turns": False})
    assert parts_of(alone.shared_names) == {"encoder"}
    (arrays, _), (wanted, _) = fit(alone), fit(fedavg())
    assert all(np.array_equal(a, b) for a, b in zip(arrays, wanted, strict=False))
