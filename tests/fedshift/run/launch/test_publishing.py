"""What Flower Hub takes: this app, and which folders it does not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support import ROOT
from typer.testing import CliRunner

from fedshift import cli
from fedshift.run.doctor import doctor, hub


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A small app that the Hub takes."""
    folder = tmp_path / "small-app"
    folder.mkdir()
    for name in ("pyproject.toml", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, folder)
    (folder / "README.md").write_text("words")
    return folder


def what(folder: Path) -> list[str]:
    return [problem.what for problem in hub.problems(folder)]


def change(old: str, new: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        text = (folder / "pyproject.toml").read_text()
        assert text.count(old) == 1
        (folder / "pyproject.toml").write_text(text.replace(old, new))

    return write


def test_this_app_is_taken_as_it_is(tmp_path: Path) -> None:
    """Under the name that a clone has: the folder of a checkout may have another."""
    clone = tmp_path / "fedshift"
    local = (".venv", ".git", ".*_cache", ".hypothesis", "runs", "nodes", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(*local))
    assert what(clone) == []


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (change("license = { file =", "license = { text ="), "license file, not inline text"),
        (change("fab-format-version = 1\n", ""), "fab-format-version is not set, the Hub accepts 1"),
        (change('name = "fedshift"', 'name = "fed_shift"'), 'project.name "fed_shift" is invalid'),
        (lambda app: (app / "a.py").write_bytes(b"\xff"), "a.py' is not UTF-8 encoded"),
        (lambda app: (app / "/".join("abcdefghijkl")).mkdir(parents=True), ""),
    ],
)
def test_what_it_does_not_take(app: Path, broken: Callable[[Path], object], reason: str) -> None:
    """Flower's own checks are asked, of a description and of files."""
    broken(app)
    assert ["" if reason in line else line for line in what(app)] == [""] * bool(reason)


def test_the_command(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "APP", app)
    shown = CliRunner().invoke(cli.app, ["doctor", "--publish"])
    assert (shown.exit_code, shown.output) == (0, f"folder: {app}\n\nproblems\n  none found\n")
    (app / "README.md").unlink()
    shown = CliRunner().invoke(cli.app, ["doctor", "--publish", "--json"])
    assert shown.exit_code == 1
    assert json.loads(shown.output)["problems"][0]["what"] == "no README.md would be uploaded"
