"""Servers that train a network on what nodes send: a resumed run goes on, and numbers that run away end it."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from refusals import refused
from scipy.special import logsumexp
from support import new_strategy, node

from fedshift_core.errors import FederationError
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.federation.roster import Roster
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods import dense
from fedshift_strategies.methods.dense import Floats, Network
from fedshift_strategies.methods.fedgh import FedGHStrategy
from fedshift_strategies.methods.fedpall import FedPallStrategy
from fedshift_strategies.methods.fedtgp import FedTGPStrategy

NODES = [node(i, counts=(4, 4, 0)) for i in range(2)]


@pytest.fixture(params=[FedGHStrategy, FedPallStrategy, FedTGPStrategy])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Roster, "nodes", property(lambda self: NODES))
    return request.param


def begun(kind: type[DomainStrategy[Any]], **params: Any) -> DomainStrategy[Any]:
    server = new_strategy(kind, personal=True, **params)
    server.start_run(ArrayRecord())
    return server


def in_round(server: DomainStrategy[Any], server_round: int) -> dict[str, Any]:
    """Let the server merge what two nodes send in a round; return all that it knows then."""
    server._result.server_round = server_round
    updates = []
    for each in NODES:
        features = np.random.default_rng((each.index, server_round)).normal(size=(8, 2)).astype(np.float32)
        labels = np.arange(8) % 2
        means = np.stack([features[:4].mean(axis=0), features[4:].mean(axis=0), np.zeros(2, np.float32)])
        sent = {"prototypes": means, "counts": np.array([4, 4, 0]), "features": features, "labels": labels}
        updates.append(Update(each, ArrayRecord(), sent, 8, {}))
    server.merge_knowledge(updates)
    return {**server.knowledge, **{f"state/{name}": array for name, array in server.state.items()}}


def test_a_resumed_run_goes_on_to_the_bit(kind: Any) -> None:
    whole, first = begun(kind), begun(kind)
    began = in_round(whole, 1)
    in_round(first, 1)
    resumed = new_strategy(kind, personal=True)
    resumed.knowledge, resumed.state = dict(first.knowledge), dict(first.state)
    result, again = in_round(whole, 2), in_round(resumed, 2)
    assert result.keys() == again.keys()
    assert all(np.array_equal(result[name], again[name]) for name in result)
    assert not all(np.array_equal(result[name], began[name]) for name in result)


def test_numbers_that_run_away_are_reported_in_one_line(kind: Any) -> None:
    with refused(FederationError, "round 4", "method.server_lr=1e+300") as caught:
        in_round(begun(kind, server_lr=1e300), 4)
    assert "\n" not in str(caught.value)


# --- their small networks -----------------------------------------------------------------------------------


def loss(network: Network, x: Floats, y: NDArray[np.int64]) -> float:
    """Return the mean cross-entropy."""
    for k in range(1, dense.depth(network)):
        x = x @ network[f"linear{k}"].T
        x = (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + dense.EPS)
        x = np.maximum(network[f"scale{k}"] * x + network[f"shift{k}"], 0)
    logits = x @ network[f"linear{dense.depth(network)}"].T + network.get("bias", 0)
    return float(np.mean(logsumexp(logits, axis=1) - logits[np.arange(len(y)), y]))


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_slopes_against_differences(layers: int, bias: bool) -> None:
    rng, sizes = np.random.default_rng(1), [4, *[5] * (layers - 1), 3]
    network = {f"linear{k}": rng.normal(size=(sizes[k], sizes[k - 1])) for k in range(1, layers + 1)}
    network |= {f"{name}{k}": rng.uniform(0.5, 1.5, 5) for k in range(1, layers) for name in ("scale", "shift")}
    network |= {"bias": rng.normal(size=3)} if bias else {}
    x, y = rng.normal(size=(7, 4)), rng.integers(0, 3, 7)
    result = dense.slopes(network, x, y)
    assert result.keys() == network.keys()
    for name, array in network.items():
        for place in np.ndindex(array.shape):
            step = np.zeros_like(array)
            step[place] = 1e-6
            more, less = (loss(network | {name: array + sign * step}, x, y) for sign in (1, -1))
            assert result[name][place] == pytest.approx((more - less) / 2e-6, rel=1e-4, abs=1e-7)
