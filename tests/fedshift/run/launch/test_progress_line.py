"""A run's progress below a cell of a notebook, and none at all."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest

import fedshift as fs
from fedshift.run.launch import progress_line, progress_table
from fedshift.run.launch.progress_line import line_of

STATUS = {"method": "fedavg", "experiment": "handwritten", "rounds": 4, "state": "training", "answered": 2, "asked": 8}
ROUNDS = [{"accuracy": {"scan": 80.0, "sketch": 40.0}}, {"accuracy": None}]


def test_a_line_says_how_a_run_stands() -> None:
    watched = progress_table.Watched(Path("none"))
    assert line_of(watched) == "the run is being prepared"
    watched.status, watched.rounds, watched.left = STATUS, ROUNDS, 75.0
    assert line_of(watched) == (
        "fedavg on handwritten  [##########..........] 2/4  avg 60.0  worst sketch 40.0  left 1:15  "
        "training: 2 of 8 answered"
    )
    watched.status, watched.rounds, watched.left = STATUS | {"rounds": 0}, [], None
    assert line_of(watched) == "fedavg on handwritten  [....................] 0/1  training: 2 of 8 answered"
    watched.features = {"done": 2056, "of": 8224}
    assert line_of(watched) == "features of images, computed once: 2,056 of 8,224"


class Cell:
    """Stands for a notebook's display: what was shown, by its id."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown: dict[str, list[str]] = {}
        module = types.ModuleType("IPython.display")
        module.display = self.display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
        monkeypatch.setitem(sys.modules, "IPython.display", module)
        monkeypatch.setattr(progress_line, "in_notebook", lambda: True)

    def display(self, content: dict[str, str], *, raw: bool, display_id: str, update: bool) -> None:
        assert raw and update == (display_id in self.shown)
        self.shown.setdefault(display_id, []).append(content["text/plain"])


def test_in_a_notebook_one_line_is_updated(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cell = Cell(monkeypatch)
    given: dict[str, Any] = {"engine": "inline", "nodes": 4, "rounds": 2}
    fs.run("handwritten", **given, train={"epochs": 1}, allocation={"share": 0.06})
    (lines,) = cell.shown.values()
    assert lines[0] == "the run is being prepared"
    assert lines[-1].startswith("fedavg on handwritten  [####################] 2/2  avg ")
    assert "  completed: " in lines[-1]
    printed = capfd.readouterr().out
    assert "round 1/2" not in printed and "top-1 accuracy" in printed
