"""Weights of the worst domain: both steps against slow versions, groups of nodes, and runs."""

import itertools

import numpy as np
import pytest
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from support import node

from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import AggregationConfig
from fedshift_app.features.afl import server as afl
from fedshift_core.errors import ConfigError
from fedshift_core.wire.names import RECEIVED_LOSS
from fedshift_strategies.federation.updates import Update

RULE = AggregationConfig(weights="afl", afl_step=0.5)


def update(index: int, images: int, loss: float | None, **metrics: float) -> Update:
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
    updates = [update(0, 30, 2.0), update(1, 10, 1.0), update(2, 60, 1.0)]
    weights, q = afl.weigh(RULE, updates, {0: 7, 1: 7, 2: 8, 3: 9}, {})
    of_group = (30 * 2.0 + 10 * 1.0) / 40
    raised = {7: np.exp(0.5 * of_group), 8: np.exp(0.5 * 1.0)}
    share = {group: (2 / 3) * value / sum(raised.values()) for group, value in raised.items()}  # 9 keeps its third
    assert q == pytest.approx(share | {9: 1 / 3})
    both = share[7] + share[8]
    assert weights == pytest.approx([share[7] * 0.75 / both, share[7] * 0.25 / both, share[8] / both])
    assert sum(weights) == pytest.approx(1)


def test_without_a_loss_nothing_moves_and_a_late_group_gets_the_mean() -> None:
    weights, q = afl.weigh(RULE, [update(0, 10, None), update(1, 20, None)], {0: 0, 1: 1, 2: 2}, {0: 0.8, 1: 0.2})
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
