"""A node weighs by at most so many times the median of the nodes' images."""

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from strategies.contributions import Declaration
from strategies.federation.announced import most_images, weighed
from strategies.federation.nodes import Node
from strategies.federation.roster import Roster
from strategies.federation.updates import Update

DECLARED: Declaration = {
    "prototypes": ("C", "D"), "counts": ("C",), "features": ("P", "D"), "labels": ("P",), "scores": (6, "C"),
}  # fmt: skip


def node(index: int, *counts: int) -> Node:
    return Node(100 + index, index, "scan", counts, 5, False, index)


def update(of: Node, **knowledge: Any) -> Update:
    return Update(of, ArrayRecord(), knowledge, of.num_examples, {}, 1.5)


def test_the_median_of_the_nodes_decides() -> None:
    nodes = [node(0, 10), node(1, 20), node(2, 10**9)]
    assert most_images(nodes, 100) == 2000
    assert most_images([], 100) == math.inf
    assert most_images(nodes[:1], 1) == 10


def test_who_is_within_is_the_same_object() -> None:
    given = update(node(0, 50, 50), counts=np.array([50, 50]))
    assert weighed(given, 100, DECLARED) is given


def test_images_counts_and_rows_are_scaled_down_alike() -> None:
    given = update(
        node(0, 900, 100, 0), counts=np.array([900, 1, 0]), prototypes=np.ones((3, 2)), labels=np.arange(1000),
        features=np.arange(2000).reshape(1000, 2), scores=np.ones((6, 3)),
    )  # fmt: skip
    found = weighed(given, 10, DECLARED)
    assert (found.num_examples, found.node.class_counts, found.node.index) == (10, (9, 1, 0), 0)
    assert found.knowledge["counts"].tolist() == [9, 1, 0]
    assert found.knowledge["labels"].tolist() == [0, 111, 222, 333, 444, 555, 666, 777, 888, 999]
    assert (found.knowledge["features"][:, 0] // 2 == found.knowledge["labels"]).all()
    assert (found.knowledge["prototypes"].shape, found.knowledge["scores"].shape) == ((3, 2), (6, 3))
    assert given.knowledge["counts"].tolist() == [900, 1, 0]


def test_a_line_says_once_who_weighs_less(caplog: pytest.LogCaptureFixture) -> None:
    roster = Roster(("scan",), "deployment", "{}", 1)
    roster.max_images = 100
    roster._nodes = {n.node_id: n for n in (node(0, 10), node(1, 10), node(2, 10**7))}
    for _ in range(2):
        roster._seat(set(), started=True)
    assert caplog.messages == [
        "node 2 (scan) announces 10000000 training images, 1e+06 times the median of the nodes: it weighs as if it had "
        "1000 (federation.max_images)"
    ]
    assert [roster.weighs(n) for n in roster.nodes] == [10, 10, 1000]
