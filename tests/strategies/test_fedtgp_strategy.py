"""FedTGP on the server: rounds against torch's autograd and SGD, and the margin."""

import numpy as np
import pytest
import torch
from support import new_strategy, update
from torch import nn

from fedshift_core.seeding import generator
from fedshift_strategies.methods.fedtgp import FedTGPStrategy, contrast, initial, margin

C, D = 3, 2


def test_a_prototype_that_is_met_exactly_has_a_finite_gradient() -> None:
    labels, prototypes = np.array([0, 2, 1, 1, 0]), np.random.default_rng(0).normal(size=(C, D))
    slope = contrast(prototypes[labels], labels, prototypes, 1.0)
    assert np.isfinite(slope).all()
    none = contrast(np.zeros((1, D)), np.array([0]), np.zeros((C, D)), 1.0)
    assert not none.any()


def test_the_margin_is_the_largest_gap_of_class_means_and_capped() -> None:
    # Means 0, 3 and 10 on a line: the nearest others are 3, 3 and 7 away.
    p = np.array([[[-1, 0], [3, 0], [10, 0]], [[1, 0], [9e5, 0], [10, 0]]], np.float32)
    holds = np.array([[True, True, True], [True, False, True]])
    assert margin(p, holds, 100) == pytest.approx(7)
    assert margin(p, holds, 5) == 5
    assert margin(p[:, :1], holds[:, :1], 5) == 5  # one class has no gap


# --- rounds ----------------------------------------------------------------------------------------


def test_rounds_are_torchs_sgd_on_what_nodes_hold() -> None:
    """At a width where ReLU cuts some."""
    width, rate = 8, 0.5
    server = new_strategy(FedTGPStrategy, width=width, server_epochs=3, server_batch=2, server_lr=rate)
    embedding, first, second = nn.Embedding(C, width), nn.Linear(width, width), nn.Linear(width, width)
    trained = (embedding.weight, first.weight, first.bias, second.weight, second.bias)
    for tensor, part in zip(trained, initial(C, width, generator(0, "fedtgp-initial")).values(), strict=True):
        tensor.data = torch.from_numpy(part).double()
    optimizer = torch.optim.SGD(trained, lr=rate)
    for server_round in (1, 2):
        server._result.server_round = server_round
        p = np.random.default_rng(server_round).normal(size=(3, C, width)).astype(np.float32)
        server.merge_knowledge([update(rows, (2, 0, 2), i) for i, rows in enumerate(p)])
        held, y = torch.from_numpy(p[:, [0, 2]].reshape(6, width)).double(), torch.tensor([0, 2] * 3)
        delta = min(float(torch.linalg.norm(held[y == 0].mean(dim=0) - held[y == 2].mean(dim=0))), 100)
        order = generator(0, "fedtgp-order", server_round)
        for _ in range(3):
            for some in torch.from_numpy(order.permutation(6)).split(2):
                made = second(torch.relu(first(embedding.weight)))
                distances = torch.cdist(held[some], made) + delta * nn.functional.one_hot(y[some], C)
                optimizer.zero_grad()
                nn.functional.cross_entropy(-distances, y[some]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        for name, tensor in zip(server.state, trained, strict=True):
            np.testing.assert_allclose(server.state[name], tensor.detach().numpy(), rtol=1e-4, atol=1e-6, err_msg=name)
    hidden = torch.relu(first(embedding.weight))
    assert (hidden == 0).any()
    assert server.knowledge["labels"].tolist() == [0, 2]  # class 1 nobody ever held
    server.merge_knowledge([update(p[0], (0, 0, 0))])  # changes nothing
    np.testing.assert_allclose(server.knowledge["prototypes"], second(hidden).detach()[[0, 2]], rtol=1e-4, atol=1e-5)
