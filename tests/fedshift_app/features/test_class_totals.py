"""Numbers of images by class of all nodes: sums by hand, and a node that announces too many."""

import numpy as np
import pytest
from support import federation, node

from fedshift_app.features.class_balance.server import ClassBalance, totals
from fedshift_clients.training.settings import TrainConfig
from fedshift_core.params import Params


def test_totals_are_sums() -> None:
    nodes = [node(0, counts=(3, 0, 5)), node(1, counts=(1, 2, 0))]
    assert totals(nodes, 100.0).tolist() == [4, 2, 5]


def test_the_log_says_what_nodes_are_sent() -> None:
    settings = TrainConfig(epochs=1, batch_size=2, lr=0.1, class_weights="balanced", class_counts="federation")
    feature = ClassBalance("class-balance", federation(train=settings), Params())
    assert [*feature.describe([node(0, counts=(3, 0, 5)), node(1, counts=(9, 0, 0))])] == [
        "classes are weighed by the images of all nodes, which all are sent: 12, 0, 5"
    ]


def test_a_node_that_announces_too_many_counts_as_far_as_it_weighs() -> None:
    nodes = [node(0, counts=(10, 0)), node(1, counts=(0, 10)), node(2, counts=(1000, 0))]
    assert totals(nodes, 5.0).tolist() == pytest.approx([60, 10])
    assert np.isfinite(totals(nodes, 5.0)).all()


def test_a_run_that_asks_for_none_says_nothing() -> None:
    feature = ClassBalance("class-balance", federation(), Params())
    assert [*feature.describe([node(0, counts=(3, 0, 5))])] == []
