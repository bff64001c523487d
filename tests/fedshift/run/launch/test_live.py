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

from fedshift.run.launch import progress_table
from fedshift_app.run import console
from fedshift_core.env import LIVE


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


@pytest.mark.parametrize(
    ("terminal", "term", "log", "possible"),
    [(True, "xterm", "", True), (True, "dumb", "", False), (True, "xterm", "json", False), (False, "xterm", "", False)],
)
def test_only_a_terminal_has_a_table(
    terminal: bool, term: str, log: str, possible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("FEDSHIFT_LOG", log) if log else monkeypatch.delenv("FEDSHIFT_LOG", raising=False)
    round_of = logging.LogRecord("fedshift", logging.INFO, "", 0, "round 1/2", (), None)
    round_of.event = "round"
    with progress_table.screen() as screen:
        assert (LIVE in os.environ) == possible
        console._Stdout().handle(round_of)
        assert screen.call([sys.executable, "-c", "raise SystemExit(3)"], Path.cwd(), os.environ) == 3
    assert LIVE not in os.environ
    cursor_is_back = "\x1b[?25h" in out.getvalue()
    assert ("round 1/2" not in out.getvalue()) is cursor_is_back is possible


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
