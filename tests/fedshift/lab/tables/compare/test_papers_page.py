"""docs/results/papers.md: each printed table and figure has its line, each command on it resolves; nothing is run."""

import re
from dataclasses import dataclass

import pytest
from doc_commands import options, runs_of
from support import ROOT

from fedshift.lab.tables.papers import printed as printed_module
from fedshift.lab.tables.papers.deviations import altered
from fedshift.lab.tables.papers.printed import Table

PAGE = (ROOT / "docs" / "results" / "papers.md").read_text(encoding="utf-8")
#: Figures of each paper, as its text numbers them.
FIGURES = {
    "F2DC": "1 2 3 4 5 6 7 8", "I2PFL": "1 2 3 4 5 6 7 8", "FedCode": "1a 1b 2 3 4 5 6 7 8 9",
    "FedICON": "1a 1b 2 3a 3b", "FedSeProto": "1 2 3 4",
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A line of the page: what is printed, the commands that make it, what is missing."""

    section: str
    printed: str
    commands: tuple[str, ...]
    missing: str

    @property
    def table(self) -> Table | None:
        """The table of conf/papers; None of a figure."""
        return printed_module.get(self.printed.strip("`")) if self.printed.startswith("`") else None


def lines() -> list[Line]:
    """Return the lines of all tables of the page."""
    result, section = [], ""
    for text in PAGE.splitlines():
        if text.startswith("## "):
            section = text.removeprefix("## ")
        cells = [cell.strip() for cell in text.strip("|").split(" |")]
        if text.startswith("| ") and cells[0] != "printed":
            printed, _, commands, missing = cells
            result.append(Line(section, printed, tuple(re.findall(r"`fedshift ([^`]*)`", commands)), missing))
    return result


LINES = lines()


@pytest.mark.parametrize("line", LINES, ids=[f"{line.section}-{line.printed.strip('`')}" for line in LINES])
def test_the_commands_of_a_line_resolve_and_make_each_row_that_we_have(line: Line) -> None:
    assert line.commands or line.missing, "neither a command nor why there is none"
    runs = [run for command in line.commands for run in runs_of(command)]
    table = line.table
    if table is None:
        return
    assert all(options(command).get("paper", "") in ("", table.id) for command in line.commands)
    for column_map in table.printed.column_maps:
        made, held = set(), set()
        for run in runs:
            if run["dataset.name"] in column_map.dataset and table.column_map(run) == column_map:
                standing = table.standing(run)
                if standing is not None:
                    made.add(standing.row.method)
                    held |= set(run["allocation.held_out"])
                    values = altered([run], table, column_map, standing)
                    otherwise = table.prints_of(str(standing.settings["method.name"]))
                    others = [value for value in values if value.key not in otherwise]
                    assert bool(others) == (run["method.name"] in table.paper.also), run["method.name"]
        assert made == {row.method for row in table.printed.rows if table.readings(row)}
        assert not column_map.unseen or held == set(column_map.columns.values())


def test_every_table_and_figure_has_one_line() -> None:
    tables = [line.table.id for line in LINES if line.table is not None]
    assert sorted(tables) == sorted(table.id for table in printed_module.all_tables())
    for section, numbers in FIGURES.items():
        figures = [line.printed.removeprefix("Figure ") for line in LINES if line.section == section and not line.table]
        assert figures == numbers.split()
