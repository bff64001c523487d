"""FedGH on the server: rounds against torch's SGD. Its slopes are those of ``fedshift_strategies.methods.dense``."""

from functools import partial

import numpy as np
import pytest
import torch
from support import ask, new_strategy, node, update
from torch import nn

from fedshift_core.seeding import generator
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.dense import Floats
from fedshift_strategies.methods.fedgh import CLIP, FedGHStrategy, initial

C, D = 3, 2
strategy = partial(new_strategy, FedGHStrategy, personal=True)


def drawn(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=shape)


# --- rounds ----------------------------------------------------------------------------------------


def nodes(counts: tuple[int, ...] = (2, 2, 2), scale: float = 1.0) -> list[Update]:
    apart = np.array([[4, 0], [0, 4], [-4, -4]])
    return [update(scale * (apart + drawn(C, D, seed=i)), counts, i) for i in range(3)]


@pytest.mark.parametrize(("epochs", "size", "scale"), [(1, 1, 1.0), (2, 4, 1.0), (1, 4, 100.0)])
def test_a_round_is_a_pass_of_sgd_over_what_nodes_sent(epochs: int, size: int, scale: float) -> None:
    server, lr = strategy(server_epochs=epochs, server_lr=0.5 / scale, server_batch=size), 0.5 / scale
    assert server.knowledge_for(node(), ask()) == {}  # round 1: each node begins with its own
    server.merge_knowledge(nodes(scale=scale))
    head, first = nn.Linear(D, C).double(), initial(C, D, generator(0, "fedgh-initial"))
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(first["head/weight"]))
        head.bias.copy_(torch.from_numpy(first["head/bias"]))
    optimizer, norms = torch.optim.SGD(head.parameters(), lr=lr), []
    p = torch.from_numpy(np.concatenate([one.knowledge["prototypes"] for one in nodes(scale=scale)])).double()
    y, order = torch.arange(C).repeat(3), generator(0, "fedgh-order", 0)
    for _ in range(epochs):
        for some in torch.from_numpy(order.permutation(9)).split(size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(p[some]), y[some]).backward()  # type: ignore[no-untyped-call]
            norms.append(float(nn.utils.clip_grad_norm_(head.parameters(), CLIP)))
            optimizer.step()
    assert (max(norms) > CLIP) == (scale > 1)
    sent = server.knowledge_for(node(), ask(2))
    assert {name: (array.shape, array.dtype.name) for name, array in sent.items()} == {
        "head/weight": ((C, D), "float32"), "head/bias": ((C,), "float32")
    }  # fmt: skip
    np.testing.assert_allclose(sent["head/weight"], head.weight.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sent["head/bias"], head.bias.detach(), rtol=1e-5, atol=1e-6)
