"""FedNova against the paper in NumPy: the normaliser, a round by slow sums, and a real run of nodes of unequal size."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support import ask, federation, fit, image_set, new_client, node, phase, refusal_of, shared

from fedshift_app.config.resolving import resolve
from fedshift_clients.methods.fednova import FedNovaClient
from fedshift_core.errors import ConfigError
from fedshift_core.methods.fedprox import FedProxParams
from fedshift_core.wire.records import decode, encode
from fedshift_strategies.features.base import Training
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.fednova import FedNovaStrategy, length, steps


def by_coefficients(tau: int, rho: float, eta_mu: float) -> float:
    """Return |a_i| as the paper has it: how much each gradient is in w - w_i, worked out one gradient at a time."""
    total = 0.0
    for own in range(tau):
        velocity, gone = 0.0, 0.0
        for step in range(tau):
            velocity = rho * velocity + (step == own) - eta_mu * gone
            gone += velocity
        total += abs(gone)
    return total


@pytest.mark.parametrize("tau", [1, 2, 7, 40])
def test_the_normaliser_is_the_papers_closed_form(tau: int) -> None:
    assert length(tau, 0, 0) == tau
    for rho in (0.5, 0.9):
        assert length(tau, rho, 0) == pytest.approx((tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho), rel=1e-12)
    for eta_mu in (0.001, 0.1):
        assert length(tau, 0, eta_mu) == pytest.approx((1 - (1 - eta_mu) ** tau) / eta_mu, rel=1e-9)
    assert length(tau, 0.5, 0.01) == pytest.approx(by_coefficients(tau, 0.5, 0.01), rel=1e-12)


def server(sizes: Sequence[int], mu: float = 0.0, **run: Any) -> tuple[FedNovaStrategy, list[Any]]:
    """Return a strategy in round 1 with nodes of so many images."""
    made = FedNovaStrategy(federation(**run), FedProxParams(mu=mu), lambda *result: None)
    nodes = [node(i, counts=(size, 0, 0)) for i, size in enumerate(sizes)]
    made._training = phase(Training, nodes)
    return made, nodes


@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_a_round_is_the_papers(mu: float) -> None:
    """w <- w - tau_eff sum p_i (w - w_i) / |a_i|, of clients that train, without the strategy."""
    sizes = (3, 8, 17)
    train = federation().config.train.model_copy(update={"epochs": 2})
    made, nodes = server(sizes, mu, train=train)
    options = {"epochs": train.epochs, "batch_size": train.batch_size, "lr": train.lr, "momentum": train.momentum}
    updates, found, p = [], [], np.array(sizes) / sum(sizes)
    for of, size in zip(nodes, sizes, strict=True):
        scale = made.tell(of, ask())
        mine, plain = (
            new_client(FedNovaClient, {"mu": mu}, scalars=sent_scalars, train_set=image_set(size, classes=3), **options)
            for sent_scalars in (scale, {})
        )
        sent = shared(mine)
        found.append((fit(plain)[0], by_coefficients(plain.steps, train.momentum, train.lr * mu)))
        assert plain.steps == steps(size, train.batch_size, train.epochs)
        arrays = dict(zip(mine.shared_names, fit(mine)[0], strict=True))
        updates.append(Update(of, encode(arrays), {}, size, {}))
    merged = decode(made.merge(updates, made.weights(updates)))
    tau_eff = sum(share * norm for share, (_, norm) in zip(p, found, strict=True))
    for place, (name, before) in enumerate(zip(mine.shared_names, sent, strict=True)):
        d = sum(s * (before - own[place].astype(np.float64)) / norm for s, (own, norm) in zip(p, found, strict=True))
        np.testing.assert_allclose(merged[name], before - tau_eff * d, rtol=1e-5, atol=1e-6)


def test_nodes_that_take_as_many_steps_send_what_fedavg_sends() -> None:
    made, nodes = server((8, 8))
    assert [made.tell(of, ask()) for of in nodes] == [{"scale": 1.0}] * 2
    assert made.tell(nodes[0], ask(trains=False)) == {}


@pytest.mark.parametrize(("weights", "p"), [("method", (0.25, 0.75)), ("equal", (0.5, 0.5))])
def test_tau_eff_goes_by_the_weights_of_the_run(weights: str, p: tuple[float, float]) -> None:
    given = f"train.batch_size=64 train.epochs=1 train.momentum=0 aggregation.weights={weights}"
    config = resolve({"experiment": "handwritten", "set": given})
    made, nodes = server((64, 192), train=config.train, aggregation=config.aggregation)
    tau_eff = p[0] * 1 + p[1] * 3
    assert [made.tell(of, ask())["scale"] for of in nodes] == pytest.approx([tau_eff, tau_eff / 3])


def test_another_optimiser_is_refused() -> None:
    given = {"experiment": "handwritten", "method": "fednova", "set": "train.optimizer=adam"}
    assert "train.optimizer=adam, allowed is sgd" in refusal_of(ConfigError, resolve, given)
