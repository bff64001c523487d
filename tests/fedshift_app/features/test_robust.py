"""Robust averages and masks: Flower's own functions on the same numbers, slow versions, and what must hold."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import support
from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp.strategy.fedtrimmedavg import trim_mean
from flwr.serverapp.strategy.multikrum import select_multikrum
from flwr.supercore.differential_privacy import compute_clip_model_update
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from refusals import refused
from support import federation, node

from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import AggregationConfig
from fedshift_app.features.robust import server as robust
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError, FederationError
from fedshift_core.params import Params
from fedshift_core.wire.records import decode, encode
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.federation.averaging import shares
from fedshift_strategies.federation.updates import Update

SHAPES: dict[str, tuple[int, ...]] = {"w": (6, 5), "b": (7,), "s": (), "none": (0, 3)}


def model(seed: int, scale: float = 1.0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.normal(size=shape) * scale, np.float32) for name, shape in SHAPES.items()}


def updates(*arrays: Arrays) -> list[Update]:
    return [Update(node(index), encode(given), {}, index + 1, {}) for index, given in enumerate(arrays)]


def merged(models: Sequence[Arrays], sent: Arrays | None = None, buffers: Sequence[str] = (), **rule: Any) -> Arrays:
    """Return what a strategy makes of its nodes' models, which weigh 1, 2, 3, ..."""
    run = federation(aggregation=AggregationConfig(**rule), buffers=frozenset(buffers))
    strategy = DomainStrategy(run, Params(), lambda *result: None)
    given, base = updates(*models), encode(model(99) if sent is None else sent)
    arrays = support.merged(strategy, given, shares([update.num_examples for update in given]), base)
    assert given == []
    return arrays


def check_same(found: Arrays, wanted: Arrays, *, exact: bool = True) -> None:
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_allclose(found[name], array, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)


def flat(arrays: Arrays) -> list[float]:
    return [float(x) for array in arrays.values() for x in array.reshape(-1)]


# --- Flower's own ----------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [3, 4, 7, 12])
@pytest.mark.parametrize("block", [48, 1 << 19])
def test_median_is_fedmedians_bit_for_bit(nodes: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robust, "BLOCK", block)
    models = [model(seed) for seed in range(nodes)]
    wanted = {name: np.asarray(np.median(np.stack([m[name] for m in models]), axis=0)) for name in SHAPES}
    check_same(merged(models, robust="median"), wanted)


@pytest.mark.parametrize(("nodes", "trim"), [(5, 0.2), (5, 0.4), (7, 0.2), (10, 0.3), (12, 0.45)])
def test_trimmed_mean_is_fedtrimmedavgs(nodes: int, trim: float) -> None:
    models = [model(seed) for seed in range(nodes)]
    wanted = {name: np.asarray(trim_mean(np.stack([m[name] for m in models]), trim)) for name in SHAPES}
    check_same(merged(models, robust="trimmed_mean", trim=trim), wanted, exact=nodes < 9)  # then NumPy sums in pairs


@pytest.mark.parametrize(("nodes", "malicious"), [(5, 1), (7, 2), (9, 3), (12, 1)])
def test_krum_chooses_whom_flowers_chooses(nodes: int, malicious: int) -> None:
    for seed in range(3):
        models = [model(100 * seed + i, 1 + (i % 3)) for i in range(nodes)]
        contents = [RecordDict({"arrays": encode(arrays)}) for arrays in models]
        (chosen,) = select_multikrum(contents, malicious, 1)
        assert isinstance(chosen["arrays"], ArrayRecord)
        check_same(merged(models, robust="krum", malicious=malicious), decode(chosen["arrays"]))


@pytest.mark.parametrize("clip_norm", [0.3, 5.0, 100.0, None])
def test_clip_averages_what_flowers_clipping_leaves(clip_norm: float | None) -> None:
    """Without a length stated, that is the median of the lengths of the updates."""
    sent, models = model(99), [model(seed, seed + 0.1) for seed in range(5)]
    for arrays in (sent, *models):
        del arrays["s"]  # Flower's changes nothing of a single number
    lengths = [np.linalg.norm(np.subtract(flat(arrays), flat(sent))) for arrays in models]
    longest = float(np.median(lengths)) if clip_norm is None else clip_norm
    weights, total = shares([1, 2, 3, 4, 5]), {name: np.zeros(array.shape) for name, array in sent.items()}
    for weight, arrays in zip(weights, models, strict=True):
        clipped: list[NDArray[Any]] = list(arrays.values())
        compute_clip_model_update(clipped, list(sent.values()), longest)
        for name, array in zip(sent, clipped, strict=True):
            total[name] = total[name] + weight * array
    wanted = {name: np.asarray(array, np.float32) for name, array in total.items()}
    more = {} if clip_norm is None else {"clip_norm": clip_norm}
    check_same(merged(models, sent, robust="clip", **more), wanted, exact=False)


# --- what must hold --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "answers", "needed"),
    [("trimmed_mean", 2, 3), ("krum", 4, 5), ("median", 2, 3), ("median", 1, 3), ("clip", 2, 3), ("clip", 1, 3)],
)
def test_too_few_updates_have_no_robust_average(rule: Any, answers: int, needed: int) -> None:
    """The median of two is their mean: of five nodes three lost replies would hand the model to the fourth."""
    config, nodes = AggregationConfig(robust=rule, malicious=2), 7 if rule == "krum" else 5
    given, weights = updates(*[model(0)] * answers), [1 / answers] * answers
    with refused(FederationError, f"{answers} of {nodes} nodes", needed):
        feature = robust.Robust("robust", federation(aggregation=config), Params())
        feature.merge(given, weights, SimpleNamespace(weights=encode(model(0)), nodes=[None] * nodes), None)


# --- masks by agreement of signs ----------------------------------------------------------------------


def slow_mask(tau: float, values: list[float], w: float) -> float:
    """Return one number after the step."""
    n = len(values)
    up, down = sum(value > w for value in values), sum(value < w for value in values)
    agreement = abs(up - down) / n
    mean = sum((i + 1) * (value - w) for i, value in enumerate(values)) / (n * (n + 1) / 2)
    return w + (mean if agreement >= tau else agreement * mean)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 7), st.sampled_from([0.01, 0.2, 0.4, 0.6, 1.0]))
def test_masks_against_loops(seed: int, nodes: int, tau: float) -> None:
    sent, models = model(seed), [model(seed + 1 + i) for i in range(nodes)]
    models[0]["w"][0] = sent["w"][0]  # a node that does not move some numbers
    found = merged(models, sent, gma_tau=tau)
    for name, shape in SHAPES.items():
        assert (found[name].dtype, found[name].shape) == (np.float32, shape)
        for place in np.ndindex(shape):
            wanted = slow_mask(tau, [float(m[name][place]) for m in models], float(sent[name][place]))
            assert float(found[name][place]) == pytest.approx(wanted, rel=1e-5, abs=1e-5)


def test_buffers_and_whole_numbers_are_averaged_without_masks() -> None:
    sent = {"w": np.zeros(2, np.float32), "mean": np.zeros(2, np.float32), "number": np.array(3)}
    models = [
        {"w": np.array([1, 1], np.float32), "mean": np.array([1, 1], np.float32), "number": np.array(5)},
        {"w": np.array([-1, 1], np.float32), "mean": np.array([-1, 1], np.float32), "number": np.array(8)},
    ]
    found = merged(models, sent, ["mean"], gma_tau=0.5)
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
def test_what_masks_do_not_fit_is_refused(method: str, text: str, named: tuple[object, ...]) -> None:
    with refused(ConfigError, *named):
        resolve({"method": method, "set": text})
