"""Generalisation adjustment: weights against a slow version, round by round, and what makes a gap."""

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from support import federation, node, phase

from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import AggregationConfig
from fedshift_app.features.afl import server as afl
from fedshift_app.features.ga import server as ga
from fedshift_core.errors import ConfigError
from fedshift_core.limits import Refused
from fedshift_core.params import Params
from fedshift_core.wire.names import GAP, LOCAL_RECEIVED, LOCAL_TRAINED, NUM_EXAMPLES, RECEIVED_LOSS
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.features.base import Training
from fedshift_strategies.features.catalog import Around, Features
from fedshift_strategies.federation import checks
from fedshift_strategies.federation.roster import Roster
from fedshift_strategies.federation.updates import Update

Gaps = dict[int, tuple[float, float]]  # by node: how the received and its own model do


def update(index: int, numbers: tuple[float, float] | None) -> Update:
    metrics = {} if numbers is None else {LOCAL_RECEIVED: numbers[0], LOCAL_TRAINED: numbers[1]}
    return Update(node(index, counts=(index + 1, 0, 0)), ArrayRecord(), {}, index + 1, metrics)


def run(
    monkeypatch: pytest.MonkeyPatch, nodes: int, numbers: list[Gaps], rounds: int, **rule: Any
) -> list[list[float]]:
    """Return the weights of each round by the strategy itself, which hands what it keeps from round to round."""
    monkeypatch.setattr(Roster, "nodes", property(lambda self: [node(i) for i in range(nodes)]))
    config = AggregationConfig(weights="ga", **rule)
    made = DomainStrategy(federation(aggregation=config, rounds=rounds), Params(), lambda *numbers: None)
    collected = []
    for server_round, by_node in enumerate(numbers, start=1):
        made._training = phase(Training, made.roster.nodes, server_round=server_round)
        collected.append(made.node_weights([update(i, gaps) for i, gaps in by_node.items()]))
        made.moments = {name: array.copy() for name, array in made.moments.items()}
        assert {*made.moments} == {ga.NODES, ga.WEIGHTS, ga.LAST, ga.OWN}
    return collected


def slow(nodes: int, numbers: list[Gaps], rounds: int, step: float, centred: bool, sign: int) -> list[list[float]]:
    """The rounds once more, with plain lists: refine after a round when the next one tells how the average did."""
    a = [1 / nodes] * nodes
    collected = []
    for t, by_node in enumerate(numbers, start=1):
        gaps = {}
        for i in by_node:
            if t > 1 and i in numbers[t - 2]:
                gaps[i] = sign * (by_node[i][0] - numbers[t - 2][i][1])
        mean = float(np.mean(list(gaps.values()))) if centred and gaps else 0.0
        top = max([abs(g - mean) for g in gaps.values()], default=0.0)
        if top > 0:
            for i, g in gaps.items():
                a[i] = float(np.clip(a[i] + (g - mean) / top * step * (1 - (t - 2) / rounds) / nodes, 0, 1))
        total = sum(a)
        a = [x / total for x in a]
        here = [a[i] for i in by_node]
        collected.append([x / sum(here) for x in here] if sum(here) > 0 else [1 / len(here)] * len(here))
    return collected


losses = st.floats(0, 5, allow_nan=False, width=32)
rounds_told = st.lists(
    st.dictionaries(st.integers(0, 4), st.tuples(losses, losses), min_size=1).map(lambda d: dict(sorted(d.items()))),
    min_size=1, max_size=6,
)  # fmt: skip


@given(numbers=rounds_told, step=st.floats(0, 3), centred=st.booleans(), gap=st.sampled_from(["loss", "accuracy"]))
@settings(max_examples=60)
def test_rounds_against_the_slow_version(numbers: list[Gaps], step: float, centred: bool, gap: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        result = run(patch, 5, numbers, 6, gap_step=step, gap_centred=centred, gap=gap)
    wanted = slow(5, numbers, 6, step, centred, 1 if gap == "loss" else -1)
    for mine, theirs in zip(result, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


BOTH = {NUM_EXAMPLES: 3, LOCAL_RECEIVED: 0.5, LOCAL_TRAINED: 0.25}


@pytest.mark.parametrize(
    ("metrics", "weights", "named"),
    [
        (BOTH, "ga", ""),
        ({NUM_EXAMPLES: 3}, "ga", ""),  # it has no validation part
        (BOTH, "samples", "local-"),
        ({NUM_EXAMPLES: 3, LOCAL_RECEIVED: 0.5}, "ga", "one"),
        (BOTH | {LOCAL_TRAINED: float("nan")}, "ga", "local-trained"),
        (BOTH | {LOCAL_RECEIVED: 1e30}, "ga", 1e30),
    ],
)
def test_what_a_node_tells_is_two_numbers_and_only_where_it_is_asked(
    metrics: dict[str, Any], weights: Any, named: object
) -> None:
    features = Features(federation(aggregation=AggregationConfig(weights=weights, gap_on="validation")))
    training = phase(Training, [node(0)])
    around = Around((each.name, each.on_round(training)) for each in features)
    assert around.options(node(0)).get(GAP) == (["loss", "validation"] if weights == "ga" else None)
    with refused(Refused, named) if named else contextlib.nullcontext():
        checks.trained(metrics, 3, (), around.bounds(node(0)))
        around.check(metrics)


# --- afl ----------------------------------------------------------------------------------------------------


RULE = AggregationConfig(weights="afl", afl_step=0.5)


def with_loss(index: int, images: int, loss: float | None, **metrics: float) -> Update:
    received = {} if loss is None else {RECEIVED_LOSS: loss}
    return Update(node(index, counts=(images, 0, 0)), ArrayRecord(), {}, images, received | metrics)


@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0, 5)), min_size=1, max_size=5), st.floats(0, 2))
@settings(max_examples=60)
def test_the_projected_step_is_the_nearest_point_of_the_simplex(groups: list[tuple[float, float]], step: float) -> None:
    q = np.array([weight for weight, _ in groups])
    q /= q.sum()
    losses = np.array([loss for _, loss in groups])
    point, found = q + step * losses, afl.moved(q, losses, step, "projected")
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1)
    best = np.inf  # every set of zeros, the rest moved alike
    for zeros in itertools.product([False, True], repeat=len(q)):
        kept = ~np.array(zeros)
        if kept.any():
            other = np.where(kept, point + (1 - point[kept].sum()) / kept.sum(), 0.0)
            if other.min() >= -1e-12:
                best = min(best, float(((other - point) ** 2).sum()))
    assert float(((found - point) ** 2).sum()) == pytest.approx(best, abs=1e-9)


def test_nodes_share_the_weight_of_their_group_by_images() -> None:
    updates = [with_loss(0, 30, 2.0), with_loss(1, 10, 1.0), with_loss(2, 60, 1.0)]
    weights, q = afl.weigh(RULE, updates, {0: 7, 1: 7, 2: 8, 3: 9}, {})
    of_group = (30 * 2.0 + 10 * 1.0) / 40
    raised = {7: np.exp(0.5 * of_group), 8: np.exp(0.5 * 1.0)}
    share = {group: (2 / 3) * value / sum(raised.values()) for group, value in raised.items()}  # 9 keeps its third
    assert q == pytest.approx(share | {9: 1 / 3})
    both = share[7] + share[8]
    assert weights == pytest.approx([share[7] * 0.75 / both, share[7] * 0.25 / both, share[8] / both])
    assert sum(weights) == pytest.approx(1)


def test_without_a_loss_nothing_moves_and_a_late_group_gets_the_mean() -> None:
    weights, q = afl.weigh(RULE, [with_loss(0, 10, None), with_loss(1, 20, None)], {0: 0, 1: 1, 2: 2}, {0: 0.8, 1: 0.2})
    assert q == pytest.approx({0: 0.8 / 1.5, 1: 0.2 / 1.5, 2: 0.5 / 1.5})
    assert weights == pytest.approx([0.8, 0.2])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("method.update=softmax", "update"),
        ("privacy.name=local-dp", "aggregation.weights=afl"),
        ("federation.secure_sums=true", "aggregation.weights=afl"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, named: str) -> None:
    with refused(ConfigError, named):
        resolve({"method": "afl", "set": text})
