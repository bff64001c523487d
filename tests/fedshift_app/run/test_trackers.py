"""MLflow's local store and W&B's offline files hold the rounds of a run, each once, and nothing leaves the machine."""

import json
import math
import socket
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from fedshift_app.run import trackers
from fedshift_strategies.federation.context import RoundResult

SETTINGS = {
    "experiment": "mine",
    "train": {"lr": 0.1, "clip": None},
    "allocation": {"counts": {"a": 2}},
    "tracking": ["x"],
}


def result(server_round: int, accuracy: float) -> RoundResult:
    losses = {"loss": 0.5, "loss/ce": 0.25, "bad": math.nan}
    return RoundResult(server_round, {"scan": accuracy, "Straße 5%": accuracy - 2}, losses=losses, seconds=1.0)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No place is named in the environment, and there is no network."""
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    connect = socket.socket.connect

    def local(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "localhost", "::1"):
            raise AssertionError(f"a connection to {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local)


def begin(name: Any, folder: Path, history: list[RoundResult], run_id: str = "run1") -> trackers.Trackers:
    folder.mkdir(exist_ok=True)
    return trackers.Trackers((name,), folder, run_id, SETTINGS, history)


def test_mlflows_store_shows_each_round_once_also_of_a_resumed_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    first = begin("mlflow", tmp_path / "run", [])
    first.send(result(1, 40.0))
    first.send(result(2, 99.0))  # drawn, but then it did not count
    first.send(None)
    again = begin("mlflow", tmp_path / "run", [result(1, 40.0)])
    again.send(result(2, 50.0))
    (tmp_path / "run" / "results.json").write_text("{}")
    again.send(None)
    begin("mlflow", tmp_path / "other", [], "run2").send(None)
    assert caplog.records == []
    client = MlflowClient(tracking_uri=(tmp_path / trackers.STORE).as_uri())
    experiment = client.get_experiment_by_name("mine")
    assert experiment is not None
    shown = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert {name: run.info.status for name, run in shown.items()} == {"run": "FINISHED", "other": "KILLED"}
    run = shown["run"]
    assert run.data.params == {
        "experiment": "mine", "train.lr": "0.1", "allocation.counts.a": "2", "tracking": "['x']"
    }  # fmt: skip
    history = client.get_metric_history(run.info.run_id, "accuracy/scan")
    assert [(one.step, one.value) for one in history] == [(1, 40.0), (2, 50.0)]
    assert run.data.metrics["accuracy/Straße 5_"] == 48.0
    assert (run.data.metrics["loss/loss"], run.data.metrics["loss/loss.ce"]) == (0.5, 0.25)  # no file is a folder
    assert "loss/bad" not in run.data.metrics


@pytest.mark.parametrize(("mode", "resume"), [("", None), ("online", "allow")])
def test_wandb_goes_online_only_where_its_user_says_so(
    mode: str, resume: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of the user's own in this process goes on, as in a notebook: ``wandb.teardown`` would end all."""
    monkeypatch.setenv("WANDB_MODE", mode)
    for own in (None, "the user's own"):
        fake = Mock(run=own, Settings=dict)
        monkeypatch.setitem(sys.modules, "wandb", fake)
        tracker = begin("wandb", tmp_path / "run", [result(1, 40.0)])
        tracker.send(result(2, 50.0))
        tracker.send(None)
        asked, run = fake.init.call_args.kwargs, fake.init.return_value
        wanted = {"mode": mode or "offline", "resume": resume, "id": "run1", "name": "run", "project": "fedshift"}
        assert wanted.items() <= asked.items()
        assert asked["settings"]["x_disable_stats"] and asked["settings"]["x_disable_meta"]
        assert json.loads(json.dumps(asked["config"]))["train.lr"] == 0.1
        logged = [(call.kwargs["step"], call.args[0]["accuracy/scan"]) for call in run.log.call_args_list]
        assert logged == [(1, 40.0), (2, 50.0)]
        assert run.finish.call_args.kwargs == {"exit_code": 1} and fake.teardown.called == (own is None)
