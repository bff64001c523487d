"""A run in a terminal is one table; in a pipe, or for a machine, it is lines."""

import io
import json
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedshift.run.launch import progress_table
from fedshift_app.run import console
from fedshift_core.env import LIVE


class Terminal(io.StringIO):
    """A standard output that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def watched_run(status: dict[str, Any], rounds: list[dict[str, Any]]) -> progress_table.Watched:
    made = progress_table.Watched(Path("none"))
    made.status, made.rounds, made.left = status, rounds, 84.0
    return made


def text_of(status: dict[str, Any], rounds: list[dict[str, Any]], width: int = 80, height: int = 30) -> str:
    file = io.StringIO()
    shown = Console(file=file, width=width, height=height, force_terminal=False, _environ={"PYTHONUTF8": "1"})
    shown.print(progress_table.picture(watched_run(status, rounds), shown))
    return file.getvalue()


STATUS = {
    "method": "i2pfl", "experiment": "handwritten", "round": 3, "rounds": 9, "state": "training", "answered": 2,
    "asked": 8, "seconds_left": 84.0,
}  # fmt: skip


def line(number: int, losses: float | None = 1.5, **accuracy: float | None) -> dict[str, Any]:
    return {"round": number, "accuracy": accuracy or None, "losses": {"loss": losses}, "seconds": 1.0}


def test_sparklines() -> None:
    assert progress_table.spark([0, 50, 100], 8, "abc") == "abc"
    assert progress_table.spark([0, 2, 10, 12], 2, "ab") == "ab"  # means of the halves: 1 and 11
    assert progress_table.spark([1.0, None, 3.0], 8, "ab") == "a b"
    assert progress_table.spark([5.0, 5.0], 8, "abc") == "bb"
    assert progress_table.spark([None], 8) == progress_table.spark([], 8) == ""
    assert len(progress_table.spark([float(i) for i in range(1000)], 40)) == 40


def test_the_picture_has_domains_where_it_stands_and_the_time_left() -> None:
    rounds = [line(1, scan=10.0, street=20.0), line(2), line(3, 0.25, scan=30.0, street=10.0)]
    rows = text_of(STATUS, rounds).splitlines()
    assert rows[0].startswith("i2pfl on handwritten  round 3 of 9, training: 2 of 8 answered  left 1:24")
    cells = {row.split()[0]: row.split()[1:] for row in rows if row.strip()}
    assert cells["scan"] == ["30.0", "30.0", "▁█"] and cells["street"] == ["10.0", "20.0", "█▁"]
    assert cells["AVG"][:2] == ["20.0", "20.0"] and cells["loss"] == ["0.250", "██▁"]
    assert "left 1:24" in text_of(STATUS, [], width=120) and text_of({}, []).strip() == ""
    narrow = text_of(STATUS, [line(1, **{f"d{i}": 1.0 for i in range(50)})], width=40, height=20)
    assert len(narrow.splitlines()) <= 20 and "and 42 more" in narrow and max(map(len, narrow.splitlines())) <= 40


def test_features_that_are_computed_before_round_1_have_a_line(tmp_path: Path) -> None:
    watched = progress_table.Watched(tmp_path / "status")
    at = {"done": 2056, "of": 8224, "seconds_left": 84.0}
    (tmp_path / "status").write_text(json.dumps({"run_folder": None, "features": at}))
    watched.look()
    assert watched.features == at and watched.status == {}
    assert watched.left is not None and 0 < watched.left <= 84
    watched.left, shown = 84.0, Console(file=io.StringIO())
    line = "features of images, computed once: 2,056 of 8,224  left 1:24"
    assert str(progress_table.picture(watched, shown)) == line
    (tmp_path / "status").write_text(json.dumps({"run_folder": str(tmp_path), "features": at}))
    watched.look()
    assert watched.features == {}  # the table of rounds has its place


def test_names_are_no_markup() -> None:
    assert "[bold]x" in text_of(STATUS, [line(1, **{"[bold]x": 1.0, "\x1b[2J": 2.0})])


def test_what_a_run_writes_is_read_as_it_grows(tmp_path: Path) -> None:
    watched = progress_table.Watched(tmp_path / "status")
    watched.look()
    assert watched.status == {}
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "status").write_text(json.dumps({"run_folder": str(folder)}))
    watched.look()
    (folder / "status.json").write_text(json.dumps(STATUS))
    metrics = folder / "metrics.jsonl"
    metrics.write_text(json.dumps(line(1, a=1.0)) + "\n" + '{"round": 2, "acc')
    watched.look()
    assert watched.status["round"] == 3 and [line["round"] for line in watched.rounds] == [1]
    metrics.write_text(json.dumps(line(1, a=1.0)) + "\n" + json.dumps(line(2, a=2.0)) + "\n")
    (folder / "status.json").write_text("{")
    watched.look()
    assert watched.status["round"] == 3 and [line["accuracy"] for line in watched.rounds] == [{"a": 1.0}, {"a": 2.0}]
    metrics.write_text(json.dumps(line(1, a=7.0)) + "\n")  # back to an earlier round
    watched.look()
    assert [line["accuracy"] for line in watched.rounds] == [{"a": 7.0}]


@pytest.mark.parametrize(
    ("terminal", "variables", "possible"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {"TERM": "xterm", "FEDSHIFT_LOG": "json"}, False),
        (False, {"TERM": "xterm"}, False),
    ],
)
def test_only_a_terminal_has_a_table(
    terminal: bool, variables: dict[str, str], possible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    for name in ("TERM", "FEDSHIFT_LOG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    round_of = logging.LogRecord("fedshift", logging.INFO, "", 0, "round 1/2", (), None)
    round_of.event = "round"
    with progress_table.screen() as screen:
        assert (LIVE in os.environ) == possible
        console._Stdout().handle(round_of)
        assert (
            screen.call([sys.executable, "-c", "import sys; print('a line'); sys.exit(3)"], Path.cwd(), os.environ) == 3
        )
    assert LIVE not in os.environ
    if possible:
        assert "a line" in out.getvalue() and "round 1/2" not in out.getvalue()
        assert out.getvalue().endswith("\x1b[?25h") or "\x1b[?25h" in out.getvalue()  # the cursor is there again
    else:
        assert "round 1/2" in out.getvalue() and "\x1b" not in out.getvalue()


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
