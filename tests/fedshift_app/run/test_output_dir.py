"""An output-dir in which no run folder can be made is refused in a line, before a SuperLink starts or work is done."""

import os
from pathlib import Path

import pytest
from refusals import refused
from support import Command, InlineRun

from fedshift.run.launch import local_superlink
from fedshift_app.run import naming
from fedshift_core.errors import ConfigError


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
