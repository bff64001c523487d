"""Local training in parts, and what the configuration says of the optimiser, against plain PyTorch."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import D, fedavg, fit, new_client, same, shared
from torch import Tensor, nn

from clients.base import DomainClient, Phase
from clients.training.batches import Batch
from clients.training.settings import TrainConfig


class TwoParts(DomainClient):
    """First the classifier with a rate of its own, on the image as it is; then the rest, with another loss."""

    def phases(self, server_round: int) -> Sequence[Phase]:
        return [
            Phase(1, trains=("classifier.",), lr=0.5, views=0),
            Phase(2, freezes=("classifier.",), loss=self.doubled, fresh=True),
        ]

    def start_epoch(self, epoch: int) -> None:
        self.seen = [*getattr(self, "seen", []), epoch]

    def doubled(self, batch: Batch) -> dict[str, Tensor]:
        return {"twice": 2 * self.loss(batch)["ce"]}


class Watched(TwoParts):
    """Notes which weights each phase changes."""

    def start_epoch(self, epoch: int) -> None:
        super().start_epoch(epoch)
        state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.states = [*getattr(self, "states", []), state]


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}


def test_each_phase_moves_what_it_may_and_epochs_are_counted_on() -> None:
    client = new_client(Watched)
    _, metrics = fit(client)
    assert client.seen == [0, 1, 2]
    first, second, third = client.states
    last = client.model.state_dict()
    assert moved(first, second) == {"classifier"}
    assert moved(second, third) == moved(third, last) == {"encoder"}
    assert all(parameter.requires_grad for parameter in client.model.parameters())
    # 20 images: one epoch with cross-entropy, two with twice as much; the loss is the mean over all three.
    assert metrics["loss"] == pytest.approx((metrics["loss/ce"] + 2 * metrics["loss/twice"]) / 3)
    assert client.steps == 3 * math.ceil(20 / 8)


def test_a_phase_with_its_own_rate_is_plain_gradient_descent() -> None:
    client = new_client(TwoParts, momentum=0.0, weight_decay=0.0, batch_size=64)
    start = {name: tensor.clone() for name, tensor in client.model.state_dict().items()}
    with torch.no_grad():  # a batch lies in the memory of the one before, its features do not
        batches = [(client.model.encoder(x), labels) for x, labels in client.plain_batches(client.train_set)]
    features, y = (torch.cat(column) for column in zip(*batches, strict=True))
    head = nn.Linear(D, client.model.num_classes)
    head.load_state_dict(client.model.classifier.state_dict())
    nn.functional.cross_entropy(head(features), y).backward()
    wanted = start["classifier.weight"] - 0.5 * head.weight.grad  # type: ignore[operator]
    client._train(1, client.phases(1)[:1])
    torch.testing.assert_close(client.model.classifier.weight.detach(), wanted, atol=1e-6, rtol=1e-5)


def test_one_phase_of_all_epochs_is_the_base_loop() -> None:
    class Same(DomainClient):
        def phases(self, server_round: int) -> Sequence[Phase]:
            return [Phase(1), Phase(0), Phase(1)]  # momentum goes on from phase to phase

    mine, plain = new_client(Same), fedavg()
    assert same(fit(mine)[0], fit(plain)[0])


def test_a_fresh_optimiser_has_no_momentum() -> None:
    class Fresh(DomainClient):
        def phases(self, server_round: int) -> Sequence[Phase]:
            return [Phase(1), Phase(1, fresh=True)]

    assert not same(fit(new_client(Fresh))[0], fit(fedavg())[0])
    assert same(fit(new_client(Fresh, momentum=0.0))[0], fit(fedavg(momentum=0.0))[0])


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_other_optimisers_start_anew_each_round(kind: str) -> None:
    settings: dict[str, Any] = {"optimizer": kind, "lr": 1e-3}
    client = fedavg(**settings)
    given = shared(client)
    first, _ = fit(client, 1, given)
    again, _ = fit(client, 1, given)
    assert same(first, again)
    assert not same(first, fit(fedavg())[0])


def test_a_step_is_clipped() -> None:
    client = fedavg(momentum=0.0, weight_decay=0.0, epochs=1, batch_size=64, clip=0.01, lr=1.0)
    before = shared(client)
    after, _ = fit(client)
    length = math.sqrt(sum(float(np.square(a - b).sum()) for a, b in zip(after, before, strict=True)))
    assert length == pytest.approx(0.01, rel=1e-3)


def factor(server_round: int, rounds: int, **settings: Any) -> float:
    return TrainConfig(epochs=1, batch_size=2, lr=1.0, **settings).lr_factor(server_round, rounds)


@given(st.integers(1, 50), st.integers(1, 50))
def test_without_a_schedule_every_round_has_the_same_rate(server_round: int, rounds: int) -> None:
    assert factor(server_round, rounds) == 1.0


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_goes_from_lr_to_its_end(schedule: str) -> None:
    found = [factor(t, 11, schedule=schedule, schedule_end=0.2) for t in range(1, 12)]
    assert found[0] == 1.0
    assert found[5] == pytest.approx(0.6)  # half way, in both
    assert found[-1] == pytest.approx(0.2)
    assert found == sorted(found, reverse=True)


def test_the_decay_is_by_round() -> None:
    assert factor(4, 100, lr_decay=0.998) == pytest.approx(0.998**3)


def test_the_rate_of_a_round_is_used() -> None:
    decayed, plain = fedavg(lr=0.05, lr_decay=0.5), fedavg(lr=0.025)
    given = shared(plain)
    assert same(fit(decayed, 2, given)[0], fit(plain, 2, given)[0])
    assert same(fit(decayed, 1, given)[0], fit(fedavg(lr=0.05), 1, given)[0])


class Received(DomainClient):
    """Notes when weights came."""

    def received(self) -> None:
        self.came = [*getattr(self, "came", []), self.model.classifier.bias.detach().clone()]


def test_the_method_is_told_of_weights_before_training_and_before_scoring() -> None:
    client = new_client(Received)
    given = [array + 1 if array.ndim == 1 else array for array in shared(client)]
    fit(client, 1, given)
    client.evaluate(given, {"server-round": 1, "domains": ["a"]})
    assert len(client.came) == 2
    for bias in client.came:
        assert np.array_equal(bias.numpy(), given[client.shared_names.index("classifier.bias")])
    assert set(client.received_weights) == set(client.shared_names)
    assert np.array_equal(client.received_weights["classifier.bias"].numpy(), client.came[0].numpy())
