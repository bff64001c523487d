"""FedTGP on the server: loss and gradients against loops, finite differences and autograd; rounds."""

from functools import partial

import numpy as np
import pytest
import torch
from support import new_strategy, update
from torch import nn

from fedshift_core.seeding import generator
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.fedtgp import FedTGPStrategy, Floats, TrainedPrototypes, contrast, initial, margin

C, D, B = 3, 2, 5
LABELS = np.array([0, 2, 1, 1, 0])
strategy = partial(new_strategy, FedTGPStrategy, personal=True, server_epochs=3, server_batch=2)


def points(seed: int = 0, width: int = D) -> Floats:
    return np.random.default_rng(seed).normal(size=(B, width))


def parts(seed: int = 1, width: int = D) -> TrainedPrototypes:
    drawn = initial(C, width, np.random.default_rng(seed))
    return TrainedPrototypes(**{name: part.astype(np.float64) for name, part in drawn.items()})


def test_steps_against_autograd_and_sgd_of_torch() -> None:
    """Twenty steps at a width where ReLU cuts some; the second half on other prototypes."""
    width, rate, delta = 8, 0.5, 2.0
    ours = parts(width=width)
    embedding, first, second = nn.Embedding(C, width), nn.Linear(width, width), nn.Linear(width, width)
    with torch.no_grad():
        for theirs, part in zip((embedding.weight, first.weight, first.bias, second.weight, second.bias),
                                vars(ours).values(), strict=True):  # fmt: skip
            theirs.data = torch.from_numpy(part.copy())
    optimizer = torch.optim.SGD([*embedding.parameters(), *first.parameters(), *second.parameters()], lr=rate)
    for step in range(20):
        p = points(step // 10, width)
        made = second(torch.relu(first(embedding.weight)))
        distances = torch.cdist(torch.from_numpy(p), made) + delta * nn.functional.one_hot(torch.from_numpy(LABELS), C)
        loss = nn.functional.cross_entropy(-distances, torch.from_numpy(LABELS))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        ours = ours.stepped(p, LABELS, delta, rate)
    theirs = (embedding.weight, first.weight, first.bias, second.weight, second.bias)
    for part, tensor in zip(vars(ours).values(), theirs, strict=True):
        np.testing.assert_allclose(part, tensor.detach().numpy(), rtol=1e-8, atol=1e-9)
    assert (ours.hidden() == 0).any()


def test_a_prototype_that_is_met_exactly_has_a_finite_gradient() -> None:
    prototypes = points()[:C]
    _, slope = contrast(prototypes[LABELS], LABELS, prototypes, 1.0)
    assert np.isfinite(slope).all()
    _, none = contrast(np.zeros((1, D)), np.array([0]), np.zeros((C, D)), 1.0)
    assert not none.any()


def test_the_margin_is_the_largest_gap_of_class_means_and_capped() -> None:
    # Means 0, 3 and 10 on a line: the nearest others are 3, 3 and 7 away.
    p = np.array([[[-1, 0], [3, 0], [10, 0]], [[1, 0], [9e5, 0], [10, 0]]], np.float32)
    holds = np.array([[True, True, True], [True, False, True]])
    assert margin(p, holds, 100) == pytest.approx(7)
    assert margin(p, holds, 5) == 5
    assert margin(p[:, :1], holds[:, :1], 5) == 5  # one class has no gap


# --- rounds ----------------------------------------------------------------------------------------


def nodes(scale: float = 1.0, counts: tuple[int, ...] = (2, 2, 2)) -> list[Update]:
    p = np.array([[4, 0], [0, 4], [-4, -4]]) * scale
    return [update(p + np.random.default_rng(i).normal(size=(C, D)) / 10, counts, i) for i in range(3)]


def test_a_round_is_the_steps_that_it_says_on_what_nodes_hold() -> None:
    server = strategy()
    held = nodes(counts=(2, 0, 2))
    server.merge_knowledge(held)
    drawn = initial(C, D, generator(0, "fedtgp-initial"))
    one = TrainedPrototypes(**{name: part.astype(np.float64) for name, part in drawn.items()})
    p = np.array([node.knowledge["prototypes"][k] for node in held for k in (0, 2)], np.float64)
    y, order = np.array([0, 2] * 3), generator(0, "fedtgp-order", 0)
    delta = min(float(np.linalg.norm(p[y == 0].mean(axis=0) - p[y == 2].mean(axis=0))), 100)
    for _ in range(3):
        places = order.permutation(6)
        for start in (0, 2, 4):
            some = places[start : start + 2]
            one = one.stepped(p[some], y[some], delta, 0.01)
    assert {name: array.dtype.name for name, array in server.state.items()} == dict.fromkeys(vars(one), "float32")
    for name, part in vars(one).items():
        np.testing.assert_allclose(server.state[name], part, rtol=1e-6, atol=1e-7)
    assert server.knowledge["labels"].tolist() == [
        0,
        2,
    ]  # class 1 nobody ever held
    server.merge_knowledge(nodes(counts=(0, 0, 0)))  # changes nothing
    np.testing.assert_allclose(server.knowledge["prototypes"], one.made_of(one.hidden())[[0, 2]], rtol=1e-5, atol=1e-6)
