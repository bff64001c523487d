"""A server asks for scores again and again, to average the rounding away or to try weights of its choice."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from flwr.app import MessageType
from guarded_node import constant, images, refused, run, scored


@pytest.fixture
def limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("FEDSHIFT_STATE", str(tmp_path / "state"))
    policy = tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump({"scores": {"per_run": 3, "runs_per_day": 2}}))
    policy.chmod(0o600)
    return {"policy": str(policy)}


def test_the_same_weights_have_the_same_answer_which_costs_nothing(tmp_path: Path, limited: dict[str, Any]) -> None:
    node = run(images(tmp_path), **limited)
    first = scored(node)
    assert all(scored(node, server_round=number) == first for number in range(1, 9))


def test_a_run_has_so_many_questions_also_after_a_restart(tmp_path: Path, limited: dict[str, Any]) -> None:
    folder = images(tmp_path)
    node = run(folder, **limited)
    for label in range(3):
        scored(node, constant(node.weights, label))
    for again in (node, run(folder, **limited)):
        reason = refused(again, MessageType.EVALUATE, constant(node.weights, 3), domains=["scan"])
        assert "allowed are scores.per_run=3" in reason
    scored(node, constant(node.weights, 2))  # answered before


def test_so_many_runs_of_a_day_have_scores(tmp_path: Path, limited: dict[str, Any]) -> None:
    folder = images(tmp_path)
    for name in "bc":
        scored(run(folder, **limited), **{"run-id": name * 32})
    reason = refused(run(folder, **limited), MessageType.EVALUATE, **{"domains": ["scan"], "run-id": "d" * 32})
    assert "allowed are scores.runs_per_day=2" in reason
