"""Sweeps that are played by a script, and what stands for their comparison."""

import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from played_runs import Compared, Played

import fedshift
import fedshift.api  # it needs the real comparison
import fedshift.lab.tables.papers
from fedshift.lab.grid.sweep import forks, running
from fedshift.run import checking
from fedshift_core.errors import ConfigError


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> type[Compared]:
    """Put a small comparison in place of the real one, which has tests of its own."""

    @dataclass(frozen=True)
    class Numbers:
        notes: tuple[str, ...] = ()
        rows: tuple[()] = ()

    @dataclass(frozen=True)
    class Table:
        numbers: Numbers = Numbers()

        def text(self) -> str:
            return "\n".join(["the table", *self.numbers.notes])

        def html(self, where: Path) -> str:
            assert where.name == "compare.html" and where.parent.is_dir()
            return "the page"

        markdown = csv = text

    def compare(runs: Sequence[Path], *, paper: str = "", score: str = "last5", allow_different: bool = False) -> Table:
        assert all((run / "results.json").is_file() for run in runs)
        Compared.calls.append(([run.name for run in runs], paper, allow_different))
        return Table()

    Compared.calls = []

    def get(table: str) -> types.SimpleNamespace:
        if table not in ("i2pfl.table1", "f2dc.table4"):
            raise ConfigError(f"there is no table {table!r}")

        def check_of_runs() -> None:
            if table == "f2dc.table4":
                raise ConfigError("it prints costs, which runs do not have")

        return types.SimpleNamespace(check_of_runs=check_of_runs)

    tables = types.ModuleType("fedshift.lab.tables.papers.printed")
    vars(tables).update(get=get)
    fake = types.ModuleType("fedshift.lab.tables.compare")
    vars(fake).update(compare=compare)
    for module, package, name in ((fake, fedshift, "compare"), (tables, fedshift.lab.tables.papers, "printed")):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(package, name, module, raising=False)
    return Compared


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compared: type[Compared]) -> Played:
    result = Played(tmp_path)
    monkeypatch.setattr(checking, "check_data", lambda *run: result.check(*run))
    monkeypatch.setattr(checking, "check_model", lambda *_: None)
    monkeypatch.setattr(running, "run_command", lambda: [sys.executable, str(result.script)])
    monkeypatch.setattr(forks, "FEWEST_RUNS", sys.maxsize)  # a script is not forked
    return result
