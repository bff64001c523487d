"""``fedshift report``, and the report that a run ends with: wrong keys, folders that are none, errors of ours."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import refused
from support import ROOT, Run

from fedshift import cli
from fedshift.lab.pages.report import build as report_build
from fedshift.lab.pages.report import command
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.run import exit_codes
from fedshift_core.errors import ConfigError, DataError, FedShiftError

QUICK = "train.epochs=1 allocation.share=0.05"


# --- the command ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("images=0", "images: "), ("images=many", "'many'"), ("images=" + "9" * 5000, "images: "),
        ("data-dir=", "key=value"), ("seed=1", "'seed'"),
        ("data-dir=~nouser", "'~nouser'"),
    ],
)  # fmt: skip
def test_wrong_keys(argument: str, named: str, finished: Run) -> None:
    with refused(ConfigError, named):
        command.run(finished.folder, [argument])


def test_folders_that_are_none(copied: Run, tmp_path: Path) -> None:
    """Of images and of a run: nothing is written."""
    before = sorted(copied.folder.iterdir())
    (tmp_path / "empty").mkdir()
    for data_dir, named in (("/nonexistent", "/nonexistent"), (tmp_path / "empty", "scan train not found")):
        with pytest.raises(DataError, match=named):  # which is shortened by the length of the folder's name
            command.run(copied.folder, [f"data-dir={data_dir}"])
    assert sorted(copied.folder.iterdir()) == before
    (copied.folder / "report.json").mkdir()
    with refused(ConfigError, f"report: cannot write to {copied.folder}"):
        command.run(copied.folder, ["images=1"])
    with refused(ConfigError, "config.yaml"):
        command.run(tmp_path / "nowhere", [])
    for name, text, named in (("results.json", "[1", "results.json"), ("config.yaml", "resolved: {}", "engine")):
        (copied.folder / name).write_text(text)
        with refused(ConfigError, named):
            command.run(copied.folder, [])


def test_an_error_is_reported_in_a_line_and_fails_no_run(
    copied: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(error: BaseException) -> Callable[..., None]:
        def make(*_: object) -> None:
            raise error

        return make

    monkeypatch.setattr(report_build, "make", broken(ZeroDivisionError("of ours")))
    with refused(FedShiftError, "ZeroDivisionError: of ours"):
        command.run(copied.folder, [])
    for error in (FedShiftError("no room"), SystemExit(130)):
        monkeypatch.setattr(command, "run", broken(error))
        cli.report_after_run(copied.folder)
        said = capsys.readouterr().err
        assert said.startswith("report: none (") and said.count("\n") == 1
        assert f"fedshift report {copied.folder}" in said


def test_a_run_ends_with_its_report_unless_it_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []

    def run(folder: Path, _: list[str]) -> report_build.Made:
        made.append(folder)
        return report_build.Made(folder / "report.html", ("Features: gone",))

    monkeypatch.setattr(command, "run", run)
    quick = ["handwritten", "engine=inline", "rounds=1", "nodes=4", f"output-dir={tmp_path}", f"set={QUICK}"]
    cli.run(quick)
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1] == "not drawn: Features: gone"
    assert shown.out.splitlines()[-2:] == [f"report: {made[0] / 'report.html'}", f"run folder: {made[0]}"]
    cli.run([*quick, "report=false"])
    assert len(made) == 1
    with refused(ConfigError, "report: 'no'"):
        parse_arguments(["report=no"])
    with pytest.raises(SystemExit) as caught:  # the command itself has an exit code for it, a run has not
        cli.report(made[0], [])
    assert caught.value.code == exit_codes.PARTLY_DRAWN == 5


def test_the_command_does_not_start_slower() -> None:
    slow = {"matplotlib", "sklearn", "jinja2", "torch", "flwr", "scipy", "numpy", "pydantic", "yaml"}
    code = f"import sys, fedshift.cli; assert not {slow!r} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
