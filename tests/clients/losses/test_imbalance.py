"""Losses for unequal classes against slow versions: weights, focal loss, and the drawn order."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from slow_terms import softmax
from support import as64, batch, drawn, fedavg, gradient, image_set, labels, rng

from fedshift_clients.losses.imbalance import ClassLoss, balanced, class_loss, effective
from fedshift_clients.methods.fedmd import FedMDClient
from fedshift_clients.training.batches import in_turns
from fedshift_clients.training.phases import Phase
from fedshift_clients.training.settings import TrainConfig

COUNTS = st.lists(st.integers(0, 500), min_size=1, max_size=6).filter(any)


def train(**given: object) -> TrainConfig:
    return TrainConfig.model_validate({"epochs": 1, "batch_size": 8, "lr": 0.1} | given)


def slow_loss(logits: np.ndarray, y: Any, w: Any, gamma: float) -> Any:
    """The mean of -w_y (1 - p_y)^gamma log p_y."""
    p = softmax(logits)[np.arange(len(y)), y]
    return -(np.array(w)[y] * (1 - p) ** gamma * np.log(p)).mean()


# --- weights ---------------------------------------------------------------------------------------


@given(COUNTS, st.sampled_from([0.0, 0.5, 0.9, 0.999, 0.9999]))
@settings(max_examples=50)
def test_weights_as_slow_versions(counts: list[int], beta: float) -> None:
    numbers, given_counts = [sum(beta**i for i in range(n)) for n in counts], np.array(counts, float)
    held, total = len([n for n in counts if n]), sum(1 / n for n in numbers if n)
    wanted = [sum(counts) / (held * n) if n else 1.0 for n in counts]
    assert balanced(given_counts) == pytest.approx(wanted)
    assert np.dot(wanted, counts) == pytest.approx(sum(counts))
    # (1 - beta^n) / (1 - beta) is the sum of powers
    assert effective(given_counts, beta) == pytest.approx([held / n / total if n else 1.0 for n in numbers])


# --- the loss --------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.0, 0.5, 5.0])
@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.0, 3.0]])
def test_the_loss_is_the_equation(gamma: float, weights: list[float] | None) -> None:
    loss = ClassLoss(None if weights is None else torch.tensor(weights), gamma)
    logits, y = 3 * drawn(1, 9, 4), labels(2, 9, 4)
    wanted = slow_loss(as64(logits), y.tolist(), weights or [1.0] * 4, gamma)
    assert float(loss(logits, y)) == pytest.approx(wanted, rel=1e-5)
    assert float(loss.of_each(logits, y).mean()) == pytest.approx(wanted, rel=1e-5)
    alone = torch.cat([loss.of_each(logits[i : i + 1], y[i : i + 1]) for i in range(9)])
    torch.testing.assert_close(loss.of_each(logits, y), alone)


@pytest.mark.parametrize("gamma", [0.1, 2.0])
def test_an_image_that_is_surely_right_has_a_finite_gradient(gamma: float) -> None:
    logits, loss = torch.tensor([[200.0, 0.0], [0.0, 200.0]]), ClassLoss(None, gamma)
    assert float(loss(logits, torch.tensor([0, 0]))) == pytest.approx(100)
    right, wrong = gradient(lambda x: loss(x, torch.tensor([0, 0])), logits).abs()
    assert right.max() < 1e-6 and 0.4 < wrong.max() < 1e6


def test_weights_by_name_and_their_keys() -> None:
    names = ("a", "b", "c", "d")
    loss = class_loss(train(class_weights={"b": 3, "d": 0.5}), [1, 1, 1, 1], names, torch.device("cpu"))
    assert loss.weights is not None and loss.weights.tolist() == [1, 3, 1, 0.5]
    again = TrainConfig.model_validate_json(train(class_weights={"b": 3}).model_dump_json())
    assert again == train(class_weights={"b": 3}) and hash(again) == hash(train(class_weights={"b": 3}))
    for bad in ({}, {"a": True}, {"a": -1}, 3):
        with pytest.raises(ValidationError, match="class_weights"):
            train(class_weights=bad)


# --- clients ---------------------------------------------------------------------------------------


def test_a_clients_loss_is_weighed_on_its_own_images_alone() -> None:
    client, given_batch = fedavg(), batch(8)
    plain = client.loss(given_batch)["ce"]
    client.class_loss = ClassLoss(torch.tensor([4.0, 1.0, 1.0, 1.0]))
    torch.testing.assert_close(client.image_losses(given_batch)["ce"].mean(), client.loss(given_batch)["ce"])
    assert float(client.loss(given_batch)["ce"]) > float(plain)
    client.phase = Phase(1, images=image_set())  # public ones, of which nobody knows how frequent a class is
    assert torch.equal(client.loss(given_batch)["ce"], plain)
    assert FedMDClient.can_weigh_classes()


# --- the drawn order -------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), min_size=1, max_size=80), st.integers(0, 99), st.integers(1, 20))
@settings(max_examples=60)
def test_each_batch_has_all_classes_equally_often(y: list[int], seed: int, size: int) -> None:
    given_labels = torch.tensor(y)
    order, again = (in_turns(given_labels, rng(seed)) for _ in range(2))
    assert len(order) == len(y) and torch.equal(order, again)
    for part in torch.split(order, size):
        counts = torch.bincount(given_labels[part], minlength=6)[sorted(set(y))]
        assert int(counts.max() - counts.min()) <= 1
    for label in set(y):  # all images of a class before one comes again
        times = torch.bincount(order[given_labels[order] == label], minlength=len(y))[given_labels == label]
        assert int(times.max() - times.min()) <= 1
