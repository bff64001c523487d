"""Local training in parts, and what the configuration says of the optimiser, against plain PyTorch."""

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from support import changed, features_of, fedavg, fit, new_client, normalised, parts_of, same, shared, weights
from torch import Tensor, nn

from fedshift_clients.base import DomainClient, Phase
from fedshift_clients.modules.base import Modules
from fedshift_clients.training import optimizers
from fedshift_clients.training.batches import Batch
from fedshift_clients.training.settings import TrainConfig
from fedshift_core.errors import FedShiftError
from fedshift_core.params import Params


class TwoParts(DomainClient):
    """First the classifier with a rate of its own, on the image as it is; then the rest, with another loss."""

    def phases(self, server_round: int) -> Sequence[Phase]:
        return [
            Phase(1, trains=("classifier.",), lr=0.5, views=0),
            Phase(2, freezes=("classifier.",), loss=self.doubled, fresh=True),
        ]

    def start_epoch(self, epoch: int) -> None:
        self.seen = [*getattr(self, "seen", []), (epoch, weights(self))]

    def doubled(self, batch: Batch) -> dict[str, Tensor]:
        return {"twice": 2 * self.loss(batch)["ce"]}


def test_each_phase_moves_what_it_may_and_epochs_are_counted_on() -> None:
    client = new_client(TwoParts)
    _, metrics = fit(client)
    epochs, states = zip(*client.seen, strict=True)
    moved = [parts_of(changed(*pair)) for pair in pairwise([*states, weights(client)])]
    assert (epochs, moved) == ((0, 1, 2), [{"classifier"}, {"encoder"}, {"encoder"}])
    assert all(parameter.requires_grad for parameter in client.model.parameters())
    # 20 images: one epoch with cross-entropy, two with twice as much; the loss is the mean over all three.
    assert metrics["loss"] == pytest.approx((metrics["loss/ce"] + 2 * metrics["loss/twice"]) / 3)
    assert client.steps == 3 * math.ceil(20 / 8)


def test_a_fresh_optimiser_has_no_momentum() -> None:
    class Fresh(DomainClient):
        def phases(self, server_round: int) -> Sequence[Phase]:
            return [Phase(1), Phase(1, fresh=True)]

    assert not same(fit(new_client(Fresh))[0], fit(fedavg())[0])
    assert same(fit(new_client(Fresh, momentum=0.0))[0], fit(fedavg(momentum=0.0))[0])


def test_a_step_is_clipped() -> None:
    client = fedavg(momentum=0.0, weight_decay=0.0, epochs=1, batch_size=64, clip=0.01, lr=1.0)
    before = shared(client)
    after, _ = fit(client)
    length = math.sqrt(sum(float(np.square(a - b).sum()) for a, b in zip(after, before, strict=True)))
    assert length == pytest.approx(0.01, rel=1e-3)


def factor(server_round: int, rounds: int, **settings: Any) -> float:
    return TrainConfig(epochs=1, batch_size=2, lr=1.0, **settings).lr_factor(server_round, rounds)


def by_hand(schedule: str, t: int, rounds: int, warmup: int) -> float:
    """Return the rate of a round slowly: a row of all rounds, from which the round is taken."""
    ramp = np.linspace(1 / warmup, 1, warmup) if warmup else np.ones(1)
    p = np.linspace(0, 1, rounds - len(ramp) + 1)[1:]
    fall = {"linear": 0.2 + 0.8 * (1 - p), "cosine": 0.2 + 0.8 * (1 + np.cos(np.pi * p)) / 2}
    row = np.concatenate([ramp, fall.get(schedule, np.ones_like(p))])
    if schedule == "step":  # the rounds after 4 and after 9, whether it is warm by then or not
        row[4:] *= 0.5
        row[9:] *= 0.5
    return float(row[t - 1] * 0.99 ** (t - 1))


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize("schedule", ["none", "linear", "cosine", "step"])
def test_every_schedule_with_warm_up_and_decay(schedule: str, warmup: int) -> None:
    steps = {"schedule_steps": (4, 9), "schedule_factor": 0.5} if schedule == "step" else {}
    more = {"schedule": schedule, "schedule_end": 0.2, "warmup_rounds": warmup, "lr_decay": 0.99, **steps}
    for t in range(1, 13):
        assert factor(t, 12, **more) == pytest.approx(by_hand(schedule, t, 12, warmup), rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "of_torch"),
    [("sgd", partial(torch.optim.SGD, momentum=0.9)), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)],
)
def test_every_optimiser_in_a_phase_of_its_own_rate_is_plain_pytorch(kind: str, of_torch: Any) -> None:
    """Two epochs of the classifier alone: as that optimiser of PyTorch over the classifier's weights only."""
    options = {"optimizer": kind, "weight_decay": 0.1, "schedule": "step", "schedule_steps": (1,)}
    client = new_client(TwoParts, lr=1e-3, batch_size=64, **options)
    features, y = (
        features_of(client.model, normalised(client.train_set, client.setup.images)),
        torch.from_numpy(client.train_set.y),
    )
    head, before = copy.deepcopy(client.model.classifier), weights(client)
    plain = of_torch(head.parameters(), lr=0.05, weight_decay=0.1)  # 0.5 of the phase, 0.1 of the schedule
    for _ in range(2):
        plain.zero_grad()
        nn.functional.cross_entropy(head(torch.from_numpy(features).float()), y).backward()
        plain.step()
    client._train(2, [client.phases(2)[0]] * 2)
    torch.testing.assert_close(client.model.classifier.weight, head.weight, atol=2e-5, rtol=1e-4)
    assert parts_of(changed(before, weights(client))) == {"classifier"}  # nor the rest by a decay


def test_the_rate_of_a_round_is_used() -> None:
    decayed, plain = fedavg(lr=0.05, lr_decay=0.5), fedavg(lr=0.025)
    given = shared(plain)
    assert same(fit(decayed, 2, given)[0], fit(plain, 2, given)[0])
    assert same(fit(decayed, 1, given)[0], fit(fedavg(lr=0.05), 1, given)[0])


@pytest.mark.parametrize("names", [("ce",), ("length", "length")])
def test_modules_with_a_loss_term_of_a_name_in_use_are_refused(names: Sequence[str]) -> None:
    modules = [Modules(Params()) for _ in names]
    for one, name in zip(modules, names, strict=True):
        one.terms = lambda model, batch, name=name: {name: torch.zeros(())}  # type: ignore[method-assign, misc]
    with refused(FedShiftError, names[0]):
        fit(new_client(DomainClient, modules=modules))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"trains": ("clasifier.",)}, "clasifier."),
        ({"freezes": ("encoder.", "head.")}, "head."),
    ],
)
def test_a_phase_that_fits_no_model_is_refused(given: dict[str, Any], found: str) -> None:
    class Wrong(DomainClient):
        def phases(self, server_round: int) -> Sequence[Phase]:
            return [Phase(1, **given)]

    with refused(FedShiftError, found):
        fit(new_client(Wrong))


# --- optimisers ---------------------------------------------------------------------------------------

PAIRS = [
    (optimizers.sgd, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 1e-3}),
    (optimizers.adam, torch.optim.Adam, {"weight_decay": 1e-3}),
    (optimizers.adamw, torch.optim.AdamW, {}),
]


def after_steps(make: Callable[..., torch.optim.Optimizer], options: dict[str, Any]) -> list[torch.Tensor]:
    """Return the weights after three steps, one of them of the first layer alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    optimizer = make(model.parameters(), lr=0.1, foreach=True, **options)
    for place in range(3):
        optimizer.zero_grad()
        model[2].requires_grad_(place != 1)
        model(torch.randn(6, 5)).square().sum().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS)
def test_steps_are_torchs_own(ours: Any, theirs: Any, options: dict[str, Any]) -> None:
    torch.testing.assert_close(after_steps(ours, options), after_steps(theirs, options), rtol=0, atol=0)
