"""A run in a terminal is one table; in a pipe, or for a machine, it is lines."""

import io
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import fedshift as fs
from fedshift.run.launch import progress_line, progress_table
from fedshift.run.launch.progress_line import line_of
from fedshift.run.launch.progress_table import AROUND, Watched


class Terminal(io.StringIO):
    """A standard output that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


STATUS = {
    "method": "i2pfl", "experiment": "handwritten", "round": 3, "rounds": 9, "state": "training", "answered": 2,
    "asked": 8, "seconds_left": 84.0,
}  # fmt: skip


def line(number: int, losses: float | None = 1.5, **accuracy: float | None) -> dict[str, Any]:
    return {"round": number, "accuracy": accuracy or None, "losses": {"loss": losses}, "seconds": 1.0}


def test_the_table_is_drawn_while_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("FEDSHIFT_LOG", raising=False)
    (tmp_path / "status").write_text(json.dumps({"run_folder": str(tmp_path)}))
    (tmp_path / "status.json").write_text(json.dumps(STATUS))
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line(1, scan=12.5)) + "\n")
    with progress_table.screen() as screen:
        screen.watch(tmp_path / "status")
        whole = "above " + "a/long path/" * 40
        print(whole)  # what is printed meanwhile draws the table anew below it, and is not broken
    assert whole in out.getvalue() and "12.5" in out.getvalue().split(whole)[1]
    drawn = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out.getvalue().split(whole)[1])
    assert max(map(len, drawn.splitlines())) <= 60  # the table is: it would else not be erased whole


def shown(watched: Watched, height: int = 30) -> str:
    """Return what a terminal of so many lines shows of a run."""
    console = Console(file=io.StringIO(), width=80, height=height)
    with console.capture() as captured:
        console.print(progress_table.picture(watched, console))
    return captured.get()


def test_the_table_follows_the_files_of_a_run(tmp_path: Path) -> None:
    file, metrics = tmp_path / "status", tmp_path / "metrics.jsonl"
    watched = Watched(file)

    def seen(**content: Any) -> str:
        file.write_text(json.dumps(content))
        watched.look()
        return shown(watched)

    assert seen() == "\n"
    assert "1,200 of 5,000" in seen(features={"done": 1200, "of": 5000})
    (tmp_path / "status.json").write_text(json.dumps(STATUS))
    assert "2 of 8 \nanswered" in (head := seen(run_folder=str(tmp_path))) and "domain" not in head
    first, second = (line(i, None, never=None, scan=10.0 * i, **dict.fromkeys("xyz", 1.0)) for i in (1, 2))
    whole = f"{json.dumps(first)}\n{json.dumps(second)}\n"
    metrics.write_text(whole + '{"round": 3')  # which is being written
    (tmp_path / "status.json").write_text("{")
    watched.look()
    rows = [row.split() for row in shown(watched, AROUND + 2).splitlines()]
    assert ["scan", "20.0", "20.0"] in rows and ["and", "3", "more"] in rows
    assert [row[0] for row in rows if row[:1] == ["never"] or row[:1] == ["loss"]] == ["never"]
    metrics.write_text(whole[: len(whole) // 2])  # the run has gone back
    watched.look()
    assert [each["round"] for each in watched.rounds] == [1]


# --- one line below a cell ----------------------------------------------------------------------------------


STATE = {"method": "fedavg", "experiment": "handwritten", "rounds": 4, "state": "training", "answered": 2, "asked": 8}
ROUNDS = [{"accuracy": {"scan": 80.0, "sketch": 40.0}}, {"accuracy": None}]


def test_a_line_says_how_a_run_stands() -> None:
    watched = progress_table.Watched(Path("none"))
    assert line_of(watched) == "the run is being prepared"
    watched.status, watched.rounds, watched.left = STATE, ROUNDS, 75.0
    assert line_of(watched) == (
        "fedavg on handwritten  [##########..........] 2/4  avg 60.0  worst sketch 40.0  left 1:15  "
        "training: 2 of 8 answered"
    )
    watched.status, watched.rounds, watched.left = STATE | {"rounds": 0}, [], None
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
