"""FedSA on the server: how anchors begin and move, and what is sent."""

from functools import partial

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from support import ask, new_strategy, node, update
from torch.nn import functional as F

from fedshift_strategies.methods.fedsa import FedSAStrategy, initial_anchors, moved

strategy = partial(new_strategy, FedSAStrategy, personal=True)


def test_anchors_are_what_a_random_network_makes_of_noise() -> None:
    rng, width = np.random.default_rng(4), 16
    x = torch.from_numpy(rng.normal(size=(5, width)))
    for _ in range(2):
        weight, bias = rng.uniform(-0.25, 0.25, (width, width)), rng.uniform(-0.25, 0.25, width)
        x = F.linear(x, torch.from_numpy(weight.T.copy()), torch.from_numpy(bias))
        x = torch.relu(F.batch_norm(x, None, None, training=True))
    result = initial_anchors(5, width, np.random.default_rng(4))
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, x.numpy(), rtol=1e-5, atol=1e-6)
    assert (result >= 0).all() and len({row.tobytes() for row in result}) == 5


@pytest.mark.parametrize("momentum", [0.9999, 0.75, 0.0, 1.0])
def test_anchors_move_towards_the_plain_mean_of_those_that_hold_a_class(momentum: float) -> None:
    server = strategy(momentum=momentum)
    server.start_run(ArrayRecord())
    first = server.knowledge["anchors"].astype(np.float64)
    # Class 0 on both nodes, however many images; class 1 on one; class 2 on none.
    updates = [update([[2, 0], [9, 9], [9, 9]], [1, 0, 0]), update([[4, 2], [1, 5], [9, 9]], [9, 3, 0], 1)]
    server.merge_knowledge(updates)
    wanted = momentum * first[:2] + (1 - momentum) * np.array([[3, 1], [1, 5]])
    np.testing.assert_allclose(server.knowledge["anchors"][:2], wanted, rtol=1e-6)
    assert np.array_equal(server.knowledge["anchors"][2], first[2].astype(np.float32))
    assert set(server.knowledge) == {"anchors"}


def test_a_tiny_step_is_not_lost_in_float32() -> None:
    a, g = np.ones((1, 1), np.float32), np.full((1, 1), 2, np.float32)
    held = np.array([True])
    for _ in range(1000):
        a = moved(a, g, held, 0.9999)
    assert a[0, 0] == pytest.approx(2 - 0.9999**1000, rel=1e-4)


def test_prototypes_are_sent_only_where_they_classify() -> None:
    server = strategy(predict_by="prototype")
    server.start_run(ArrayRecord())
    server.merge_knowledge([update([[2, 0], [9, 9], [1, 1]], [1, 0, 1])])
    server.merge_knowledge([update([[9, 9], [4, 4], [9, 9]], [0, 1, 0])])
    sent = server.knowledge_for(node(), ask(2))
    assert set(sent) == {"anchors", "prototypes", "labels"}
    assert sent["labels"].tolist() == [0, 1, 2] and sent["prototypes"].tolist() == [[2, 0], [4, 4], [1, 1]]
