"""A server that sends a run of another kind, for which Flower would start a program that imports the run's bundle."""

import subprocess

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResultStatus

from fedshift.site.deploy.superexec import NodeExecutor


@pytest.mark.parametrize("kind", sorted({*TaskType} - {TaskType.CLIENT_APP}))
def test_a_node_starts_no_program_but_its_own(kind: TaskType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **more: pytest.fail(f"started {given}"))
    executor = NodeExecutor(warm=False)
    assert executor.get_eligible_capacity({kind})[0] == {kind}  # taken, so that the node does not wait for ever
    result = executor.launch(ExecutionSpec(kind, "127.0.0.1:1", "t", True, None, False, 1, False, 1, "one"))
    assert result.status == LaunchResultStatus.FAILED
