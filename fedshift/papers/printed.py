"""The papers' printed tables (conf/papers), and which of our runs a printed row and column stand for."""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from fedshift.papers import open_values
from fedshift.results.loading import ROW_SECTIONS
from fedshift_app.config import registry
from fedshift_app.config.files import CONF, names
from fedshift_core.errors import ConfigError
from fedshift_core.spelling import meant
from fedshift_core.yaml_files import read_yaml

FOLDER = "papers"
#: What a printed row of plain ``fedavg`` stands for: a method without modules and without an adaptation, but for
#: those that its own parameters tell.
PLAIN = {"modules": registry.NONE, "adapt.name": registry.NONE}
#: The sections whose settings make a printed row that row, where its label stands for them.
MAKE_ROWS = (*ROW_SECTIONS, "images.")
#: What a printed label stands for: our method, or its name and settings by dotted key. Those of ``MAKE_ROWS`` make it
#: that row; others, such as ``rounds``, are what the paper's run of it has besides, and ``experiment`` is that of the
#: row where it is not that of the table.
OurRow = str | dict[str, Any]
#: The same, or several: readings of a label that was lost, or two ways to ask for the same.
Ours = OurRow | tuple[OurRow, ...]
#: By dotted key or METHOD.KEY, why the value that our experiments have is a reading.
Readings = dict[str, Annotated[str, Field(min_length=open_values.LEAST_WHY)]]


class _Section(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """A section of a file in conf/papers."""


class _Unsettled(_Section):
    """A part of a file that says what a paper leaves open, and what it prints otherwise (``comparing.unsettled``)."""

    readings: Readings = {}
    prints: dict[str, open_values.Printed] = {}


class Printed(_Section):
    """A printed number with its printed spread."""

    mean: float
    spread: float


class PrintedRow(_Section):
    """A printed row: a number, a number with its spread, or None for a dash, by printed column."""

    method: str  # the printed label
    label_certain: bool = True  # False: it was lost or damaged in the paper's text, and what it stands for is a reading
    values: dict[str, float | Printed | None]

    def value(self, column: str) -> float | None:
        """Return the printed number of a column, None where a dash is printed."""
        value = self.values.get(column)
        return value.mean if isinstance(value, Printed) else value

    def spread(self, column: str) -> float | None:
        """Return the printed spread of a column, None where there is none."""
        value = self.values.get(column)
        return value.spread if isinstance(value, Printed) else None


class ColumnMap(_Section):
    """For which runs printed columns stand, and for which of their columns."""

    dataset: tuple[str, ...]  # our data sets
    when: dict[str, Any] = {}  # settings of the run by dotted key
    experiment: str = ""  # of which the table is, unless an experiment says of itself that it is (key ``paper``)
    unseen: bool = False  # a column is the accuracy on the domain that was held out, one run per column
    columns: dict[str, str]  # printed column: ours


class Cost(_Section):
    """Which of our costs a printed column is (``fedshift.costs.beside``)."""

    of: Literal["sent", "bytes_up", "step_flops", "seconds"]
    unit: float = Field(1.0, gt=0)  # of the printed number, in ours


class Budget(_Section):
    """What the paper states of its runs."""

    rounds: int | None = None
    epochs: int | None = None  # local epochs of a round
    nodes: int | None = None


class PrintedTable(_Unsettled):
    """One printed table, or the part of it that is of one data set; what it leaves open is besides the paper's."""

    id: str
    about: str
    dataset: str
    metric: str
    model_evaluated: str = ""
    statistic: str = ""
    scenario: str = ""
    unit: str
    columns: tuple[str, ...]
    methods: dict[str, Ours] = {}  # over those of the paper
    beside: tuple[ColumnMap, ...] = ()
    costs: dict[str, Cost] = {}  # printed columns of costs, which runs do not have
    costs_notes: tuple[str, ...] = ()  # what a reader must know of them
    budget: Budget = Budget()
    rows: tuple[PrintedRow, ...]


class PaperFile(_Unsettled):
    """A file of conf/papers."""

    paper: str
    key: str
    venue: str
    backbone: str
    notes: tuple[str, ...] = ()
    methods: dict[str, Ours] = {}  # in all tables
    also: dict[str, str] = {}  # of ours that the paper does not print: the row beside which it stands, all values told
    tables: tuple[PrintedTable, ...]
    checks: tuple[str, ...] = Field(())


@dataclass(frozen=True)
class Standing:
    """A printed row that stands beside a run.

    Attributes:
        row: The row.
        asked: The settings of ours that it stands for by dotted key; ``experiment`` where the row has one of its own.
    """

    row: PrintedRow
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A printed table with its paper.

    Attributes:
        id: By which a command asks for it, such as ``f2dc.table1b``.
        paper: Its file.
        printed: The table.
    """

    id: str
    paper: PaperFile
    printed: PrintedTable

    def column_map(self, config: Mapping[str, Any]) -> ColumnMap:
        """Return which printed columns stand for which of a run.

        Args:
            config: The run's settings by dotted key.

        Raises:
            ConfigError: If the table prints nothing that such a run has.
        """
        self.check_of_runs()
        if (columns := self.stands_for(config)) is not None:
            return columns
        wanted = " or ".join(
            " ".join(
                [
                    f"dataset.name={'|'.join(columns.dataset)}",
                    *(f"{key}={value}" for key, value in columns.when.items()),
                ]
            )
            for columns in self.printed.beside
        )
        keys = dict.fromkeys(["dataset.name", *(key for columns in self.printed.beside for key in columns.when)])
        actual = " ".join(f"{key}={config.get(key)}" for key in keys)
        raise ConfigError(f"--paper {self.id}: the table is of runs with {wanted}, found {actual}")

    def check_of_runs(self) -> None:
        """Refuse a table that prints nothing that any run has.

        Raises:
            ConfigError: If it is such a one.
        """
        if not self.printed.beside:
            where = f"; `fedshift costs METHOD... --paper {self.id}` has them" if self.printed.costs else ""
            raise ConfigError(f"--paper {self.id}: it prints {self.printed.metric}, which runs do not have{where}")

    def stands_for(self, config: Mapping[str, Any]) -> ColumnMap | None:
        """Return the same as ``beside``, None if the table prints nothing that such a run has."""
        matching = (
            columns
            for columns in self.printed.beside
            if config["dataset.name"] in columns.dataset and _has(config, columns.when)
        )
        return next(matching, None)

    def experiment(self, column_map: ColumnMap, standing: Standing | None = None) -> str:
        """Return the experiment that has what the paper ran for these columns, of a row that names its own for it.

        Raises:
            ConfigError: If there is none.
        """
        if standing is not None and "experiment" in standing.settings:
            return str(standing.settings["experiment"])
        own = _experiments().get(_squeezed(self.id), column_map.experiment)
        if not own:
            raise ConfigError(f"conf/{FOLDER}: {self.id} lacks the key experiment, and no experiment names it")
        return own

    def standing(self, config: Mapping[str, Any]) -> Standing | None:
        """Return the printed row of a run's method and settings; of several the one that states most of them.

        A method that the paper does not print, and that stands beside a row of it all the same (``also``), is told
        apart by its values, all of which are compared with those of that row.
        """
        matching = [
            (len(conditions), -i, Standing(row, settings))
            for i, row in enumerate(self.printed.rows)
            for settings in self.readings(row)
            if _has(PLAIN | dict(config), PLAIN | (conditions := _of_rows(settings)))
        ]
        if matching:
            return max(matching, key=lambda match: match[:2])[2]
        label = self.paper.also.get(str(config["method.name"]))
        row = next((row for row in self.printed.rows if row.method == label), None)
        return None if row is None else Standing(row, self.readings(row)[0])

    def readings(self, row: PrintedRow) -> tuple[dict[str, Any], ...]:
        """Return the settings of ours that a printed row stands for by dotted key, none if we have no such method.

        They are one, or several where its label was lost and leaves a choice.
        """
        ours = self.printed.methods.get(row.method, self.paper.methods.get(row.method, ()))
        return tuple(
            {"method.name": reading} if isinstance(reading, str)
            else {"method.name" if key == "name" else key: value for key, value in reading.items()}
            for reading in (ours if isinstance(ours, tuple) else (ours,))
        )  # fmt: skip

    def why_open(self, key: str, method: str, asks: Container[str]) -> str:
        """Return why the value of a setting is a reading of ours, see ``unsettled.why_open``; empty if it is none."""
        return open_values.why_open(self.paper.readings | self.printed.readings, key, method, asks)

    def prints_of(self, method: str) -> dict[str, Any]:
        """Return by dotted key what the paper prints of a method, where our experiments have another value."""
        return open_values.printed_for(self.paper.prints | self.printed.prints, method)

    def checks(self) -> list[str]:
        """Return the print errors found in this table."""
        known = sorted((table.id for table in self.paper.tables), key=len, reverse=True)
        return [
            check for check in self.paper.checks
            if next((id_ for id_ in known if check.startswith(f"{id_} ")), "") == self.printed.id
        ]  # fmt: skip


def all_tables() -> list[Table]:
    """Return all tables of all papers.

    Raises:
        ConfigError: If a file of conf/papers is not what it should be.
    """
    return [
        Table(f"{paper.key}.{_squeezed(printed.id)}", paper, printed)
        for paper in map(_read, names(FOLDER))
        for printed in paper.tables
    ]


def get(table_id: str) -> Table:
    """Return a table by its id; case, spaces and hyphens do not count.

    Raises:
        ConfigError: With the ids there are.
    """
    tables = {_squeezed(table.id): table for table in all_tables()}
    if _squeezed(table_id) not in tables:
        ids = [table.id for table in tables.values()]
        raise ConfigError(f"--paper: unknown table {table_id!r}; there are {', '.join(ids)}{meant(table_id, ids)}")
    return tables[_squeezed(table_id)]


def lines() -> list[str]:
    """Return one line per table: its id, data set, number of rows, and what it measures."""
    return [
        f"{table.id:<30} {table.printed.dataset:<24} {len(table.printed.rows):>2} rows  {table.printed.metric}"
        + ("; by `fedshift costs`" if table.printed.costs else "")
        for table in all_tables()
    ]


@cache
def _experiments() -> Mapping[str, str]:
    """Return by printed table, squeezed, the experiment that says of itself that it is that table's."""
    files = {name: read_yaml(CONF / "experiments" / f"{name}.yaml") for name in names("experiments")}
    tables = {name: _squeezed(str(file["paper"])) for name, file in files.items() if "paper" in file}
    return {table: name for name, table in reversed(tables.items())}  # of several the first; rows name the others


@cache
def _read(name: str) -> PaperFile:
    path = CONF / FOLDER / f"{name}.yaml"
    try:
        paper = PaperFile.model_validate(read_yaml(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {where}: {first['msg']}, found {first['input']!r}") from None
    parts: list[tuple[str, _Unsettled]] = [("", paper), *((f"{table.id}: ", table) for table in paper.tables)]
    for place, part in parts:
        open_values.check(part.readings, f"{path}: {place}readings")
        open_values.check(part.prints, f"{path}: {place}prints")
        if both := part.readings.keys() & part.prints.keys():
            raise ConfigError(f"{path}: {place}{min(both)} is under readings and under prints; the paper has it or not")
    return paper


def _of_rows(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key.startswith(MAKE_ROWS)}


def _has(config: Mapping[str, Any], required: Mapping[str, Any]) -> bool:
    return all(config.get(key) == value for key, value in required.items())


def _squeezed(text: str) -> str:
    return re.sub(r"[\s_-]", "", text).casefold()
