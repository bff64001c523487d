"""FedCode on the server: Eqs 4 and 9 by hand and against loops, pseudo-labels, classes and nodes that come and go."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from slow_finch import slow_finch
from support import ask, federation, new_strategy, node, phase
from support import update as prototypes_of_node

from fedshift_app.config.sections import AggregationConfig
from fedshift_core.methods.fedcode import FedCodeParams
from fedshift_core.wire.names import LOCAL_RECEIVED, LOCAL_TRAINED, RECEIVED_LOSS
from fedshift_strategies.features.base import Training
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.fedcode import FedCodeStrategy, cluster_styles

C, D = 3, 2
strategy = partial(new_strategy, FedCodeStrategy, personal=True)


def update(
    prototypes: list[list[float]], counts: list[int], style: Any = (1.0, 0.0), index: int = 0, **more: Any
) -> Update:
    """Return what a node sends; ``more`` is knowledge, too."""
    sent = prototypes_of_node(prototypes, counts, index)
    return replace(sent, knowledge={**sent.knowledge, "style-prototype": np.array(style, np.float32), **more})


ONES = [[1.0, 1.0]] * C
ALL = [1] * C


# --- Eq. 9 -----------------------------------------------------------------------------------------

# Two bundles of directions. Nearest neighbours by angle: 0-2, 4-2, 1-3, 5-3.
BUNDLES = [(1, 0), (0, 1), (2, 0.3), (0.3, 2), (3, 0), (0, 3)]


def test_first_partition_against_loops() -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        styles = rng.uniform(size=(int(rng.integers(3, 25)), 4)).astype(np.float32)
        p, pseudo = cluster_styles(styles, "first")
        groups = [np.flatnonzero(pseudo == j).tolist() for j in range(len(p))]
        assert sorted(groups) == sorted(map(sorted, slow_finch(list(styles.astype(float)), first=True)))
        for row, group in zip(p, groups, strict=True):
            assert_allclose(row, styles[group].mean(axis=0, dtype=np.float64), rtol=1e-5)


# --- pseudo-labels ---------------------------------------------------------------------------------


def bundle(*indices: int) -> list[Update]:
    return [update(ONES, ALL, BUNDLES[i], i) for i in indices]


def test_each_node_gets_its_own_cluster_and_nothing_of_the_others() -> None:
    server = strategy()
    server.merge_knowledge(bundle(0, 1, 2, 3, 4, 5))
    scalars = [server.tell(node(index), ask()) for index in range(6)]
    assert scalars == scalars[:2] * 3 and sorted(each["pseudo-label"] for each in scalars[:2]) == [0, 1]
    for index in range(6):
        sent = server.knowledge_for(node(index), ask())
        assert set(sent) == {"prototypes", "labels", "style-prototypes"}
        own = sent["style-prototypes"][scalars[index]["pseudo-label"]]
        assert_allclose(own, [2, 0.1] if index % 2 == 0 else [0.1, 2], rtol=1e-5)


# --- weights and heads -----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["afl", "ga"])
def test_heads_weigh_as_encoders_do_by_a_rule_that_takes_steps(rule: str) -> None:
    run = federation(num_classes=C, feature_dim=D, aggregation=AggregationConfig(weights=rule, afl_groups="node"))
    server = FedCodeStrategy(run, FedCodeParams(global_model="average_heads"), lambda *numbers: None)
    metrics = [
        {RECEIVED_LOSS: 3.0, LOCAL_RECEIVED: 2.0, LOCAL_TRAINED: 0.5},
        {RECEIVED_LOSS: 1.0, LOCAL_RECEIVED: 2.0, LOCAL_TRAINED: 1.9},
    ]
    for number in (1, 2):
        server._training = phase(Training, [node(0), node(1)], server_round=number)
        updates = []
        for i in range(2):
            head = {"head-weight": np.full((C, D), i, np.float32), "head-bias": np.full(C, -i, np.float32)}
            updates.append(replace(update(ONES, ALL, index=i, **head), metrics=metrics[i]))
        weights = server.node_weights(updates)
        server.merge_knowledge(updates)
        assert_allclose(server.knowledge["head-weight"], np.full((C, D), weights[1]), rtol=1e-6)
    assert weights[0] > weights[1]
