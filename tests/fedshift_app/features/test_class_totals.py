"""Numbers of images by class of all nodes: sums by hand, and a node that announces too many."""

import pytest
from support import node

from fedshift_app.features.class_balance.server import totals


def test_totals_are_sums() -> None:
    nodes = [node(0, counts=(3, 0, 5)), node(1, counts=(1, 2, 0))]
    assert totals(nodes, 100.0).tolist() == [4, 2, 5]


def test_a_node_that_announces_too_many_counts_as_far_as_it_weighs() -> None:
    nodes = [node(0, counts=(10, 0)), node(1, counts=(0, 10)), node(2, counts=(1000, 0))]
    assert totals(nodes, 5.0).tolist() == pytest.approx([60, 10])
