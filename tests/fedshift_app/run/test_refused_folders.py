"""A run folder that was damaged, or that no run has written, is refused in a line by every command that reads it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from refusals import refused
from run_folders import RESULTS, STATUS, write_run
from support import Command, InlineRun

from fedshift.lab.grid.sweep import records
from fedshift.lab.tables.compare import compare
from fedshift.run import reading
from fedshift.run.launch import local_superlink, watching
from fedshift_app.config.resolving import resolve
from fedshift_app.run import naming, resuming, status
from fedshift_app.run.files import RESULTS_FILE
from fedshift_core.errors import ConfigError

CONFIG: dict[str, Any] = {"engine": "inline", "nodes": 4, "run_id": "a" * 32, "versions": {"numpy": "2"}}


def write(where: Path, changes: str) -> dict[str, Any]:
    """Write a run folder with changes to what its ``config.yaml`` says; return what it says."""
    content = CONFIG | {"resolved": resolve({}).model_dump(mode="json")} | yaml.safe_load(changes)
    (where / "config.yaml").write_text(yaml.safe_dump(content))
    return content


BROKEN = [
    ("resolved: 5", "resolved"),
    ("nodes: many", "nodes"),
    ("nodes: 1000000000000000", "nodes"),
    ("versions: 5", "versions"),
    ("resumed: 5", "resumed"),
    ("resumed: [{}]", "resumed.0.after_round"),
    ("resumed: [{after_round: x}]", "resumed.0.after_round"),
    ("engine: [1]", "engine"),
    ("resolved: {method: {name: [x]}}", "dataset|unknown method"),
    ("resolved: {plugins: 5}", "plugins"),
]


@pytest.mark.parametrize(("changes", "reason"), BROKEN)
def test_a_damaged_config_is_refused(
    changes: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, changes)
    for read in (lambda: resuming.resolve({"resume": str(tmp_path)}, hold=False), lambda: reading.read(tmp_path)):
        with pytest.raises(ConfigError, match=reason):
            read()
    assert records.read_run(tmp_path / "config.yaml") is None  # a sweep leaves it out, and says so
    assert str(tmp_path) in capsys.readouterr().err


def test_a_whole_one_is_read(tmp_path: Path) -> None:
    write(tmp_path, "resumed: [{after_round: 3, engine: inline}]")
    config, past = resuming.resolve({"resume": str(tmp_path)}, hold=False)
    assert past is not None
    assert (past.num_nodes, past.resumed_after, config.experiment) == (4, (3,), "handwritten")
    assert reading.read(tmp_path).config == config
    assert records.read_run(tmp_path / "config.yaml") is not None


@pytest.mark.parametrize("changes", ["versions: 5", "engine: [1]", "resolved: {method: {name: []}}"])
def test_kept_results_may_be_anybodys(changes: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", resolve({}), {"scan": 1.0})
    results = json.loads((folder / "results.json").read_text()) | {"config": write(tmp_path, changes)}
    (tmp_path / "one.json").write_text(json.dumps(results))
    with pytest.raises(ConfigError):
        compare([tmp_path / "one.json"])


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, "{}", "\x00"])
def test_json_that_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(text)
    with pytest.raises(ConfigError):
        compare([tmp_path / "one.json"])
    (tmp_path / status.FILE).write_text(text)
    with pytest.raises(ConfigError):
        status.read(tmp_path)


@pytest.mark.parametrize("key", STATUS)
def test_a_damaged_status_is_refused(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / status.FILE).write_text(json.dumps(STATUS))
    (tmp_path / RESULTS_FILE).write_text(json.dumps(RESULTS))
    assert watching.show([str(tmp_path)], as_json=False, watch=False, site="") == 0
    assert capsys.readouterr().out.startswith("completed: handwritten")
    for damaged in ({name: value for name, value in STATUS.items() if name != key}, STATUS | {key: {"x": [1]}}):
        (tmp_path / status.FILE).write_text(json.dumps(damaged))
        with pytest.raises(ConfigError, match=f"status.json: {key}"):
            watching.show([str(tmp_path)], as_json=False, watch=False, site="")


# --- an output-dir in which no run folder can be made -------------------------------------------------


def test_a_folder_that_is_there_or_can_be_made_is_taken(tmp_path: Path) -> None:
    naming.check_place(tmp_path)
    naming.check_place(tmp_path / "not" / "yet")
    assert not [*tmp_path.iterdir()]


def test_a_file_in_its_place_or_a_folder_that_may_not_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "runs"):
        with refused(ConfigError, f"output-dir: {tmp_path / 'file'} "):
            naming.check_place(path)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # root may write anywhere
    with refused(ConfigError, f"output-dir: cannot write to {tmp_path / 'runs'}"):
        naming.check_place(tmp_path / "runs")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "handwritten"],
        ["run", "handwritten", "engine=inline"],
        ["deploy-demo"],
        ["rescore", "RUN", "evaluate.bn_images=10"],
    ],
    ids=" ".join,
)
def test_nothing_is_started(
    arguments: list[str], fedshift: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_run: InlineRun
) -> None:
    monkeypatch.setattr(local_superlink, "for_simulation", lambda *_: pytest.fail("something was started"))
    monkeypatch.setattr(local_superlink, "temporary_folder", lambda *_: pytest.fail("something was started"))
    run = finished_run("rounds=1 train.epochs=1")
    (tmp_path / "file").write_text("")
    given = [str(run.folder) if word == "RUN" else word for word in arguments]
    ended = fedshift(*given, f"output-dir={tmp_path / 'file'}")
    assert ended.code == 1 and f"output-dir: {tmp_path / 'file'} " in ended.err
