"""Of which test images of real nodes there is no score, in a round, in the results and under the final table."""

from typing import Any

import pytest
from support import node as node_of
from support import phase, server_feature

from fedshift_app.config.resolving import resolve
from fedshift_app.features.missing_tests.server import MissingTests
from fedshift_app.features.missing_tests.show import show
from fedshift_core.shown import History
from fedshift_core.wire.scores import DomainScore, Part
from fedshift_strategies.features.base import Scoring
from fedshift_strategies.federation.context import RoundResult
from fedshift_strategies.federation.evaluation import Answer, Evaluation
from fedshift_strategies.federation.nodes import Node

DOMAINS = ("north", "south")


def nodes(*, shared: bool = False) -> list[Node]:
    held = (("north", 90), ("north", 60), ("south", 50))
    return [node_of(i, (5,), domain, number, shared_test=shared) for i, (domain, number) in enumerate(held)]


def scored(feature: MissingTests, everyone: list[Node], answered: set[int], **more: Any) -> RoundResult:
    """Return the result of a round in which some nodes are connected and answer."""
    scoring = phase(Scoring, everyone)
    steps = feature.on_scores(scoring)
    next(steps)
    evaluation = scoring.evaluation = Evaluation(
        DOMAINS, [node for node in everyone if node.index in answered], personal=False, **more
    )
    for task in evaluation._tasks:
        (node,) = {node for node in everyone if node in task.untried} or {everyone[0]}
        images = len(task.part)
        task.answer = Answer(node, Part(task.part.domain, images, 0, images), DomainScore(1, images, 1.0))
    scoring.result.accuracy = evaluation.tally().accuracy()
    next(steps, None)
    return scoring.result


def test_a_domain_without_one_of_its_nodes_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    feature, everyone = server_feature(MissingTests, domains=DOMAINS), nodes()
    with caplog.at_level("WARNING", "fedshift"):
        assert "missing_tests" not in scored(feature, everyone, {0, 1, 2}).shown
        assert caplog.messages == []
        for _ in range(2):  # said once, written each time
            assert scored(feature, everyone, {0, 2}).shown["missing_tests"] == {"north": [90, 150]}
    (line,) = caplog.messages
    assert "north" in line and "90 of 150" in line
    assert scored(feature, everyone, {0, 1}).shown == {}  # south has no accuracy at all, as ever
    lines = [scored(feature, everyone, answered) for answered in ({0, 1, 2}, {0, 2}, {1, 2})]
    for number, result in enumerate(lines, 1):
        result.server_round = number
    assert show(History(resolve({}), lines)).results == {
        "missing_tests": {"2": {"north": [90, 150]}, "3": {"north": [60, 150]}}
    }


def test_simulated_nodes_and_samples_are_not_counted() -> None:
    feature, everyone = server_feature(MissingTests, domains=DOMAINS), nodes()
    assert scored(feature, everyone, {0, 2}, share=0.3).shown == {}
    assert scored(feature, nodes(shared=True), {0, 2}).shown == {}
