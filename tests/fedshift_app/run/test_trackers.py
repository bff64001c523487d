"""MLflow's local store and W&B's offline files hold the rounds of a run, each once, and nothing leaves the machine."""

import json
import math
import socket
from pathlib import Path
from typing import Any

import pytest

from fedshift_app.run import trackers, tracking
from strategies.federation.rounds import RoundResult

TOLD = {"experiment": "mine", "train": {"lr": 0.1, "clip": None}, "allocation": {"counts": {"a": 2}}, "tracking": ["x"]}


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


def begin(name: Any, folder: Path, history: list[RoundResult], run_id: str = "run1") -> tracking.Tracker:
    folder.mkdir(exist_ok=True)
    return tracking.tracker((name,), folder, run_id, TOLD, history)


def test_mlflows_store_shows_each_round_once_also_of_a_resumed_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    first = begin("mlflow", tmp_path / "run", [])
    first.add(result(1, 40.0))
    first.add(result(2, 99.0))  # drawn, but then it did not count
    first.close()
    again = begin("mlflow", tmp_path / "run", [result(1, 40.0)])
    again.add(result(2, 50.0))
    (tmp_path / "run" / "results.json").write_text("{}")
    again.close()
    begin("mlflow", tmp_path / "other", [], "run2").close()
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


def test_a_store_that_cannot_be_reached_costs_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    told: list[str] = []
    monkeypatch.setattr(tracking.log, "warning", lambda text, *values: told.append(text % values))
    (tmp_path / trackers.STORE).write_text("in the way")
    tracker = begin("mlflow", tmp_path / "run", [result(1, 40.0)])
    tracker.add(result(2, 40.0))
    tracker.close()
    assert len(told) == 1
    assert told[0].startswith("tracking: no more rounds for MLflow: ")


def test_wandb_writes_into_the_run_folder_offline(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its own library reads its file back: configuration and rounds; a resumed run's file is the only one."""
    pytest.importorskip("wandb")
    first = begin("wandb", tmp_path / "run", [])
    first.add(result(1, 40.0))
    first.close()
    again = begin("wandb", tmp_path / "run", [result(1, 40.0)])
    again.add(result(2, 50.0))
    again.close()
    assert caplog.records == []
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-run1.wandb")
    data = file.read_bytes()
    for word in (b"accuracy/scan", b"train.lr", b"loss/ce"):
        assert word in data
    assert data.count(b"accuracy/scan") == 2  # a line of history for each round


class _Wandb:
    """Stands for the library: it says what it was asked for."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.logged: list[tuple[int, float]] = []

    def Settings(self, **given: Any) -> dict[str, Any]:
        return given

    def init(self, **given: Any) -> "_Wandb":
        self.asked = given
        return self

    def log(self, told: dict[str, float], step: int) -> None:
        self.logged.append((step, told["accuracy/scan"]))

    def finish(self, exit_code: int) -> None:
        self.asked["exit_code"] = exit_code

    def teardown(self) -> None:
        self.logged.append((0, 0.0))


@pytest.mark.parametrize(("mode", "resume"), [("", None), ("online", "allow")])
def test_wandb_goes_online_only_where_its_user_says_so(
    mode: str, resume: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    fake = _Wandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setenv("WANDB_MODE", mode)
    tracker = begin("wandb", tmp_path / "run", [result(1, 40.0)])
    tracker.add(result(2, 50.0))
    tracker.close()
    assert (fake.asked["mode"], fake.asked["resume"]) == (mode or "offline", resume)
    assert (fake.asked["id"], fake.asked["name"], fake.asked["project"]) == ("run1", "run", "fedshift")
    assert fake.asked["settings"]["x_disable_stats"] and fake.asked["settings"]["x_disable_meta"]
    assert fake.logged == [(1, 40.0), (2, 50.0), (0, 0.0)] and fake.asked["exit_code"] == 1
    assert json.loads(json.dumps(fake.asked["config"]))["train.lr"] == 0.1
