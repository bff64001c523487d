"""A run in a terminal is one table; in a pipe, or for a machine, it is lines."""

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from fedshift.run.launch import progress_table


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
