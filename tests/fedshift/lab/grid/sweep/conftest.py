"""Sweeps that are played by a script, and what stands for their comparison."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from played_runs import Compared, Played

from fedshift.lab.grid.sweep import forks, running
from fedshift.run import checking


@dataclass(frozen=True)
class Numbers:
    notes: tuple[str, ...] = ()
    rows: tuple[()] = ()


@dataclass(frozen=True)
class Table:
    """A stand-in for a comparison."""

    numbers: Numbers = Numbers()

    def text(self) -> str:
        return "\n".join(["the table", *self.numbers.notes])

    def html(self, where: Path) -> str:
        assert where.name == "compare.html" and where.parent.is_dir()
        return "the page"

    markdown = csv = text


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> type[Compared]:
    """Put a small comparison in place of the real one, which has tests of its own."""

    def compare(runs: Sequence[Path], *, paper: str = "", allow_different: bool = False) -> Table:
        assert all((run / "results.json").is_file() for run in runs)
        Compared.calls.append(([run.name for run in runs], paper, allow_different))
        return Table()

    Compared.calls = []
    monkeypatch.setattr("fedshift.lab.tables.compare.compare", compare)
    return Compared


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compared: type[Compared]) -> Played:
    result = Played(tmp_path)
    monkeypatch.setattr(checking, "check_data", lambda *run: result.check(*run))
    monkeypatch.setattr(checking, "check_model", lambda *_: None)
    monkeypatch.setattr(running, "run_command", lambda: [sys.executable, str(result.script)])
    monkeypatch.setattr(forks, "FEWEST_RUNS", sys.maxsize)  # a script is not forked
    return result
