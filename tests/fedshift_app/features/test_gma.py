"""Masks by agreement of signs: against loops, what must hold of them, and what they do not go with."""

from typing import Any

import numpy as np
import pytest
import support
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from support import federation, node, server_feature

from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import AggregationConfig
from fedshift_app.features.gma.server import GradientMasks
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.params import Params
from fedshift_core.wire.records import encode
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.federation.averaging import shares
from fedshift_strategies.federation.updates import Update

SHAPES: dict[str, tuple[int, ...]] = {"w": (4, 5), "b": (3,), "s": (), "none": (0, 2)}


def model(seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.normal(size=shape), np.float32) for name, shape in SHAPES.items()}


def merged(tau: float, models: list[Arrays], sent: Arrays, **more: Any) -> Arrays:
    """Return what a strategy makes of its nodes' models, which weigh 1, 2, 3, ..."""
    config = AggregationConfig(gma_tau=tau)
    strategy = DomainStrategy(federation(aggregation=config, **more), Params(), lambda *result: None)
    given = [Update(node(i), encode(arrays), {}, i + 1, {}) for i, arrays in enumerate(models)]
    arrays = support.merged(strategy, given, shares([update.num_examples for update in given]), encode(sent))
    assert given == []
    return arrays


def slow(tau: float, values: list[float], w: float) -> float:
    """Return one number after the step."""
    n = len(values)
    up, down = sum(value > w for value in values), sum(value < w for value in values)
    agreement = abs(up - down) / n
    mean = sum((i + 1) * (value - w) for i, value in enumerate(values)) / (n * (n + 1) / 2)
    return w + (mean if agreement >= tau else agreement * mean)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 7), st.sampled_from([0.01, 0.2, 0.4, 0.6, 1.0]))
def test_against_loops(seed: int, nodes: int, tau: float) -> None:
    sent, models = model(seed), [model(seed + 1 + i) for i in range(nodes)]
    models[0]["w"][0] = sent["w"][0]  # a node that does not move some numbers
    found = merged(tau, models, sent)
    for name, shape in SHAPES.items():
        assert (found[name].dtype, found[name].shape) == (np.float32, shape)
        for place in np.ndindex(shape):
            wanted = slow(tau, [float(m[name][place]) for m in models], float(sent[name][place]))
            assert float(found[name][place]) == pytest.approx(wanted, rel=1e-5, abs=1e-5)


def test_what_all_agree_on_is_the_plain_average_to_the_bit_and_a_tie_stays() -> None:
    sent = {"w": np.array([1.1, 2.2, 3.3], np.float32)}
    models = [{"w": np.array([1.7, 2.3, 3.4], np.float32)}, {"w": np.array([2.9, 2.1, 3.3], np.float32)}]
    plain, found = merged(0.0, models, sent)["w"], merged(0.9, models, sent)["w"]
    assert found[0] == plain[0]  # both up
    assert found[1] == sent["w"][1] != plain[1]  # one up, one down
    assert merged(0.5, models, sent)["w"][2] == plain[2]
    alone = merged(1.0, models[:1], sent)["w"]
    np.testing.assert_array_equal(alone, models[0]["w"])


def test_a_run_says_what_it_does() -> None:
    (line,) = server_feature(GradientMasks, aggregation=AggregationConfig(gma_tau=0.4)).describe([])
    assert "aggregation.gma_tau=0.4" in line


def test_buffers_and_whole_numbers_are_averaged_without_masks() -> None:
    sent = {"w": np.zeros(2, np.float32), "mean": np.zeros(2, np.float32), "number": np.array(3)}
    models = [
        {"w": np.array([1, 1], np.float32), "mean": np.array([1, 1], np.float32), "number": np.array(5)},
        {"w": np.array([-1, 1], np.float32), "mean": np.array([-1, 1], np.float32), "number": np.array(8)},
    ]
    found = merged(0.5, models, sent, buffers=frozenset({"mean"}))
    assert found["w"].tolist() == pytest.approx([0, 1])
    assert found["mean"].tolist() == pytest.approx([-1 / 3, 1])
    assert (found["number"].tolist(), found["number"].dtype) == (7, np.int64)


@pytest.mark.parametrize(
    ("method", "text", "named"),
    [
        ("fedavg", "aggregation.gma_tau=1.5", ("aggregation.gma_tau", 1)),
        ("fedgma", "aggregation.robust=median", ("gma_tau=0.4", "aggregation.robust=median")),
        ("fedgma", "federation.secure_sums=true", ("gma_tau=0.4",)),
        ("feddyn", "aggregation.gma_tau=0.4", ("feddyn", "fedavg")),
    ],
)
def test_what_does_not_fit_is_refused(method: str, text: str, named: tuple[object, ...]) -> None:
    with refused(ConfigError, *named):
        resolve({"method": method, "set": text})
