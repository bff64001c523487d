"""Server optimisers against Flower's own strategies, bit for bit, and what is no parameter."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi
from support import federation

from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import ServerConfig
from fedshift_app.features.server_optimizer.server import ServerOptimizer
from fedshift_core.arrays import Arrays
from fedshift_core.params import Params
from fedshift_core.wire.records import decode, encode

FLOWER: dict[str, Any] = {"fedavgm": FedAvgM, "fedadam": FedAdam, "fedyogi": FedYogi, "fedadagrad": FedAdagrad}
#: Our keys, and what Flower calls them.
CASES: list[tuple[str, dict[str, float]]] = [
    ("optimizer=fedavgm lr=0.7 momentum=0.5", {"server_learning_rate": 0.7, "server_momentum": 0.5}),
    ("optimizer=fedavgm lr=0.7 momentum=0", {"server_learning_rate": 0.7}),
    ("optimizer=fedavgm momentum=0", {}),  # FedAvg, without a rounding
    ("optimizer=fedadam", {}),
    (
        "optimizer=fedadam lr=0.03 beta1=0.5 beta2=0.8 tau=0.01",
        {"eta": 0.03, "beta_1": 0.5, "beta_2": 0.8, "tau": 0.01},
    ),
    ("optimizer=fedyogi lr=0.2 beta1=0 beta2=0.9 tau=1", {"eta": 0.2, "beta_1": 0.0, "beta_2": 0.9, "tau": 1.0}),
    ("optimizer=fedadagrad lr=0.5 tau=0.1", {"eta": 0.5, "tau": 0.1}),
]


def weights(seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in (("b", (3, 5)), ("a", (4,)))}


def step(feature: ServerOptimizer, merged: Arrays, sent: Arrays, server_round: int) -> Arrays:
    """Return the weights that follow on merged ones."""
    training: Any = SimpleNamespace(weights=encode(sent), server_round=server_round)
    return decode(feature.merge([], [], training, lambda updates, weights: encode(merged)))


@pytest.mark.parametrize(("keys", "flower"), CASES)
def test_as_flowers_strategies(keys: str, flower: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rounds, the first without moments; Flower is given our weights each time, whose type it does not keep."""
    config = resolve({"set": " ".join(f"server.{key}" for key in keys.split())}).server
    theirs = FLOWER[config.optimizer](**flower)
    given: list[ArrayRecord] = []
    monkeypatch.setattr(FedAvg, "aggregate_train", lambda *_: (given[-1], MetricRecord()))
    feature, sent = ServerOptimizer("server-optimizer", federation(server=config), Params()), weights(0)
    for server_round in range(1, 5):
        merged = {name: array + 0.1 * weights(server_round)[name] for name, array in sent.items()}
        given.append(encode(merged))
        theirs.current_arrays = encode(sent) if isinstance(theirs, FedAvgM) else sent
        wanted, _ = theirs.aggregate_train(server_round, [])
        sent = step(feature, merged, sent, server_round)
        assert list(sent) == ["b", "a"]  # in their order
        for name, array in sent.items():
            assert np.array_equal(array, wanted[name].numpy().astype(np.float32))
    assert len(feature.state) == 2 * config.moments
    assert {array.dtype for array in [*feature.state.values(), *sent.values()]} == {np.dtype(np.float32)}


@pytest.mark.parametrize("optimizer", FLOWER)
def test_what_is_no_parameter_is_averaged(optimizer: Any) -> None:
    """A running variance that a step may take below 0 is no variance; a count of batches is no weight."""
    result = federation(server=ServerConfig(optimizer=optimizer, lr=50.0), buffers=("bn.running_var",))
    sent = weights(0) | {"bn.running_var": np.ones(2, np.float32), "count": np.array(7)}
    merged = weights(1) | {"bn.running_var": np.full(2, 0.2, np.float32), "count": np.array(9)}
    feature = ServerOptimizer("server-optimizer", result, Params())
    arrays = step(feature, merged, sent, 1)
    for name in ("bn.running_var", "count"):
        np.testing.assert_array_equal(arrays[name], merged[name], strict=True)
    assert {name[2:] for name in feature.state} == {"a", "b"}
    assert not np.array_equal(arrays["a"], merged["a"])
