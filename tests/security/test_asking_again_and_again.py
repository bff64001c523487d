"""A server asks for scores again and again, to average the rounding away or to try weights of its choice."""

import pytest
from flwr.app import MessageType
from guarded_node import Owner, constant, refused, run, scored

from fedshift.site.deploy.exporting import NodeFolder


@pytest.fixture
def limited(policy: Owner) -> str:
    return policy(scores={"per_run": 3, "runs_per_day": 2})


def test_a_run_has_so_many_questions_also_after_a_restart(folder: NodeFolder, limited: str) -> None:
    node = run(folder, policy=limited)
    for label in range(3):
        scored(node, constant(node.weights, label))
    for again in (node, run(folder, policy=limited)):
        reason = refused(again, MessageType.EVALUATE, constant(node.weights, 3), domains=["scan"])
        assert "scores.per_run=3" in reason
    asked = constant(node.weights, 2)  # answered before: the same answer, which costs nothing
    assert scored(node, asked, server_round=1) == scored(node, asked, server_round=8)


def test_so_many_runs_of_a_day_have_scores(folder: NodeFolder, limited: str) -> None:
    for name in "bc":
        scored(run(folder, policy=limited), **{"run-id": name * 32})
    reason = refused(run(folder, policy=limited), MessageType.EVALUATE, domains=["scan"], **{"run-id": "d" * 32})
    assert "scores.runs_per_day=2" in reason
