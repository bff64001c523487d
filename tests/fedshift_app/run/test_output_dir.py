"""An output-dir in which no run folder can be made is refused in a line, before a SuperLink starts or work is done."""

import os
from pathlib import Path

import pytest
from support import Command, InlineRun, refusal_of

from fedshift.run.launch import local_superlink
from fedshift_app.run import naming
from fedshift_core.errors import ConfigError


def test_a_folder_that_is_there_or_can_be_made_is_taken(tmp_path: Path) -> None:
    naming.check_place(tmp_path)
    naming.check_place(tmp_path / "not" / "yet")
    assert not [*tmp_path.iterdir()]


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "runs"):
        assert refusal_of(ConfigError, naming.check_place, path) == f"output-dir: {tmp_path / 'file'} is not a folder"


def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # root may write anywhere
    said = refusal_of(ConfigError, naming.check_place, tmp_path / "runs")
    assert said == f"output-dir: cannot write to {tmp_path / 'runs'}: {tmp_path} is not writable for this user"


@pytest.mark.parametrize(
    "arguments",
    [["run", "handwritten"], ["run", "handwritten", "engine=inline"], ["deploy-demo"]],
    ids=" ".join,
)
def test_nothing_is_started(
    arguments: list[str], fedshift: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object, **__: object) -> None:
        pytest.fail("something was started")

    monkeypatch.setattr(local_superlink, "for_simulation", start)
    monkeypatch.setattr(local_superlink, "temporary_folder", start)
    (tmp_path / "file").write_text("")
    ended = fedshift(*arguments, f"output-dir={tmp_path / 'file'}")
    assert (ended.code, ended.err) == (1, f"error: output-dir: {tmp_path / 'file'} is not a folder\n")


def test_a_run_is_not_scored_again_for_nothing(finished_run: InlineRun, fedshift: Command, tmp_path: Path) -> None:
    run = finished_run(nodes=4, rounds=1, set="train.epochs=1")
    (tmp_path / "file").write_text("")
    ended = fedshift("rescore", str(run.folder), "evaluate.bn_images=10", f"output-dir={tmp_path / 'file'}")
    assert (ended.code, ended.err) == (1, f"error: output-dir: {tmp_path / 'file'} is not a folder\n")
