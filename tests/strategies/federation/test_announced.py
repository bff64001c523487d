"""A node weighs by at most so many times the median of the nodes' images."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from refusals import worded
from support import scored_round, server_feature

from fedshift_app.features.validation.server import Validation
from fedshift_app.flower.internals import identify_process
from fedshift_strategies.contributions import Declaration
from fedshift_strategies.federation.announced import Medians, weighed
from fedshift_strategies.federation.nodes import Node
from fedshift_strategies.federation.roster import Roster
from fedshift_strategies.federation.updates import Update

DECLARED: Declaration = {
    "prototypes": ("C", "D"), "counts": ("C",), "features": ("P", "D"), "labels": ("P",), "scores": (6, "C"),
}  # fmt: skip


def node(index: int, *counts: int) -> Node:
    return Node(100 + index, index, "scan", counts, 5, False, index)


def update(of: Node, **knowledge: Any) -> Update:
    return Update(of, ArrayRecord(), knowledge, of.num_examples, {}, 1.5)


def test_images_counts_and_rows_are_scaled_down_alike() -> None:
    given = update(
        node(0, 900, 100, 0),
        counts=np.array([900, 1, 0]),
        prototypes=np.ones((3, 2)),
        labels=np.arange(1000),
        features=np.arange(2000).reshape(1000, 2),
        scores=np.ones((6, 3)),
    )
    result = weighed(given, 10, DECLARED)
    assert (result.num_examples, result.node.class_counts, result.node.index) == (10, (9, 1, 0), 0)
    kept = {name: array.tolist() for name, array in result.knowledge.items()}
    assert kept["counts"] == [9, 1, 0]
    assert kept["labels"] == [0, *range(111, 1000, 111)]
    assert kept["features"] == [[2 * label, 2 * label + 1] for label in kept["labels"]]
    assert (kept["prototypes"], kept["scores"]) == ([[1, 1]] * 3, [[1] * 3] * 6)
    assert given.knowledge["counts"].tolist() == [900, 1, 0]


@pytest.mark.parametrize(("last", "counted"), [(2000, 3), (2001, 2)])
def test_test_images_that_a_node_invents_are_not_the_score_of_its_domain(last: int, counted: int) -> None:
    tests = (10, 20, last)
    nodes = [replace(node(i, 10), num_test=number, num_validation=number) for i, number in enumerate(tests)]
    feature = server_feature(Validation, domains=("scan",), validation_fraction=0.1)
    plan, around, scoring = scored_round(feature, ("scan",), nodes, personal=False, max_images=100)
    sent = plan.first()
    assert around.options(nodes[0]) == {"validation": True}
    assert [bool(sent[each]) for each in nodes] == [True, True, counted == 3]
    scan = {"correct/scan": 0, "count/scan": 0, "loss-sum/scan": 1.0}
    replies = []
    for of, number in zip(nodes, tests, strict=True):
        numbers = {"num-examples": 1, "validation-correct": number, "validation-count": number}
        replies.append(reply(of, numbers | (scan | {"count/scan": number} if sent[of] else {})))
    assert plan.read(replies) == []
    around.finish()
    assert scoring.result.shown["validation"] == {"scan": 100.0}
    assert plan.tally()._sums[""]["scan"][1] == sum(tests[:counted])


def reply(of: Node, numbers: dict[str, float]) -> Message:
    identify_process()
    requested = Message(RecordDict(), of.node_id, "evaluate")
    return Message(RecordDict({"metrics": MetricRecord(numbers)}), reply_to=requested)


def test_a_line_says_once_who_weighs_less(caplog: pytest.LogCaptureFixture) -> None:
    roster = Roster(("scan",), "deployment", "{}", 1)
    roster.max_images = 100
    roster._nodes = {n.node_id: n for n in (node(0, 10), node(1, 10), node(2, 10**7))}
    for _ in range(2):
        roster._seat(set(), started=True)
    worded(*caplog.messages, "node 2", 10**7, 1000, "federation.max_images")
    assert [roster.weighs(n) for n in roster.nodes] == [10, 10, 1000]


announcements = st.builds(
    Node, st.just(0), st.just(0), st.sampled_from("ab"), st.tuples(st.integers(1, 9), st.integers(0, 9)),
    st.integers(0, 9), st.booleans(), st.just(-1), num_validation=st.integers(0, 9),
    held_tests=st.sampled_from(((), (("c", 3),), (("c", 0),))),
)  # fmt: skip


@given(nodes=st.lists(announcements, min_size=1, max_size=6), factor=st.sampled_from((1.0, 1.5, 3.0)))
def test_the_medians_taken_once_are_those_of_each_node(nodes: list[Node], factor: float) -> None:
    medians = Medians(nodes, factor)
    for of in nodes:
        real = [other for other in nodes if not other.shared_test]
        too_many = []
        for domain in of.domains:
            tests = [other.tests_of(domain) for other in real if domain in other.domains and other.tests_of(domain)]
            too_many.append(bool(tests) and of.tests_of(domain) > factor * np.median(tests))
        validations = [n for other in real if other.domain == of.domain and (n := other.num_validation)]
        too_many.append(bool(validations) and of.num_validation > factor * np.median(validations))
        warning = medians.warning(of)
        assert ("training images" in warning) == (of.num_examples > factor * np.median([n.num_examples for n in nodes]))
        assert warning.count("are not counted") == (0 if of.shared_test else sum(too_many))
