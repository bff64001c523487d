"""The papers' printed tables (conf/papers), and the runs with which their rows compare.

``readings`` of a file names settings that the paper does not state, states in contradictory ways, or whose text is
lost. The experiment file has our reading of them. ``prints`` has the printed values of settings for which the
experiment file has other values.
"""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from fedshift.lab.tables.results.settings import ROW_SECTIONS
from fedshift.lab.tables.results.statistics import Spread
from fedshift_app.config import registry
from fedshift_app.config.files import CONF, names
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found
from fedshift_core.spelling import meant
from fedshift_core.yaml_files import read_yaml

FOLDER = "papers"
#: ``METHOD.*`` of readings: all parameters of a method and all settings of other sections that it sets.
ALL = "*"
#: Settings of a printed row of plain ``fedavg``: no modules and no adaptation, unless its parameters name some.
PLAIN = {"modules": registry.NONE, "adapt.name": registry.NONE}
#: Prefixes of the settings that identify a printed row.
MAKE_ROWS = (*ROW_SECTIONS, "images.")
#: The method of ours that a printed label means, or its name and settings by dotted key. Settings of ``MAKE_ROWS``
#: identify the row. Others, such as ``rounds``, are further settings of the paper's run; ``experiment`` is that of the
#: row if it differs from that of the table.
OurRow = str | dict[str, Any]
#: One such value, or several: readings of a lost label, or two equal settings.
Ours = OurRow | tuple[OurRow, ...]
#: A reason in words.
Why = Annotated[str, Field(min_length=12)]


class _Section(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """A section of a file in conf/papers."""


class Otherwise(_Section):
    """A printed value that differs from that of our experiment."""

    value: Any
    why: Why


class _Unsettled(_Section):
    """A part of a file with open values and printed values of a paper, by dotted key or METHOD.KEY."""

    readings: dict[str, Why] = {}
    prints: dict[str, Otherwise] = {}


class Printed(_Section):
    """A printed number with its printed spread."""

    mean: float
    spread: float


class PrintedRow(_Section):
    """A printed row: a number, a number with its spread, or None for a dash, by printed column."""

    method: str  # the printed label
    label_certain: bool = (
        True  # False: the label is lost or damaged in the paper's text, and its meaning is our reading
    )
    values: dict[str, float | Printed | None]

    def number(self, column: str | None) -> Spread:
        """Return the printed number of a column with its spread; without a mean for a dash and for no column."""
        value = self.values.get(column or "")
        return Spread(value.mean, value.spread) if isinstance(value, Printed) else Spread(value)


class ColumnMap(_Section):
    """The runs with which printed columns compare, and the matching columns of ours."""

    dataset: tuple[str, ...]  # our data sets
    when: dict[str, Any] = {}  # settings of the run by dotted key
    experiment: str = ""  # the table's experiment, unless an experiment names the table (key ``paper``)
    unseen: bool = False  # a column is the accuracy on its held-out domain, with one run per column
    columns: dict[str, str]  # printed column: ours


class Cost(_Section):
    """The cost of ours that a printed column shows (``fedshift.lab.grid.costs.paper_costs``)."""

    of: Literal["sent", "bytes_up", "step_flops", "seconds"]
    unit: float = Field(1.0, gt=0)  # of the printed number, in ours


class Budget(_Section):
    """What the paper states about its runs."""

    rounds: int | None = None
    epochs: int | None = None  # local epochs of a round
    nodes: int | None = None


class PrintedTable(_Unsettled):
    """One printed table, or its part for one data set.

    Its open values are added to those of the paper.
    """

    id: str
    about: str
    dataset: str
    metric: str
    model_evaluated: str = ""
    statistic: str = ""
    scenario: str = ""
    unit: str
    columns: tuple[str, ...]
    methods: dict[str, Ours] = {}  # these replace those of the paper
    column_maps: tuple[ColumnMap, ...] = ()
    costs: dict[str, Cost] = {}  # printed columns of costs; runs have no such columns
    costs_notes: tuple[str, ...] = ()  # notes for readers
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
    also: dict[str, str] = {}  # our methods that the paper does not print: the row to compare them with
    tables: tuple[PrintedTable, ...]
    checks: tuple[str, ...] = Field(())


@dataclass(frozen=True)
class Standing:
    """A printed row that is comparable with a run.

    Attributes:
        row: The row.
        settings: The settings of ours that it means, by dotted key; ``experiment`` if the row has one of its own.
    """

    row: PrintedRow
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A printed table with its paper.

    Attributes:
        id: Its name in commands, such as ``f2dc.table1b``.
        paper: The file of its paper.
        printed: The table.
    """

    id: str
    paper: PaperFile
    printed: PrintedTable

    def column_map(self, config: Mapping[str, Any]) -> ColumnMap:
        """Return which printed columns are comparable with which columns of a run.

        Args:
            config: The run's settings by dotted key.

        Raises:
            ConfigError: If the table has no column that is comparable with such a run.
        """
        self.check_of_runs()
        if (columns := self.stands_for(config)) is not None:
            return columns
        needed = [{"dataset.name": "|".join(columns.dataset)} | columns.when for columns in self.printed.column_maps]
        wanted, found = (
            " or ".join(" ".join(f"{key}={value}" for key, value in each.items()) for each in settings)
            for settings in (needed, [{key: config.get(key) for each in needed for key in each}])
        )
        raise ConfigError(f"--paper {self.id}: the table needs runs with {wanted}, found {found}")

    def check_of_runs(self) -> None:
        """Refuse a table without columns that are comparable with runs.

        Raises:
            ConfigError: If it has none.
        """
        if not self.printed.column_maps:
            where = f"; `fedshift costs METHOD... --paper {self.id}` has them" if self.printed.costs else ""
            raise ConfigError(f"--paper {self.id}: it prints {self.printed.metric}, which runs do not have{where}")

    def stands_for(self, config: Mapping[str, Any]) -> ColumnMap | None:
        """Return the same as ``column_map``; None if no column is comparable with such a run."""
        matching = (
            columns
            for columns in self.printed.column_maps
            if config["dataset.name"] in columns.dataset and _has(config, columns.when)
        )
        return next(matching, None)

    def experiment(self, column_map: ColumnMap, standing: Standing | None = None) -> str:
        """Return the experiment with the paper's settings for these columns or this row."""
        own = {} if standing is None else standing.settings
        return str(own.get("experiment") or _experiments().get(_squeezed(self.id), column_map.experiment))

    def standing(self, config: Mapping[str, Any]) -> Standing | None:
        """Return the printed row with a run's method and settings; the most specific one of several.

        A method that the paper does not print may be compared with one of its rows (``also``). Then all its values are
        compared with those of that row.
        """
        matching = []
        for i, row in enumerate(self.printed.rows):
            for settings in self.readings(row):
                conditions = {key: value for key, value in settings.items() if key.startswith(MAKE_ROWS)}
                if _has(PLAIN | dict(config), PLAIN | conditions):
                    matching.append((len(conditions), -i, Standing(row, settings)))
        if matching:
            return max(matching, key=lambda match: match[:2])[2]
        label = self.paper.also.get(str(config["method.name"]))
        named = next((row for row in self.printed.rows if row.method == label), None)
        return None if named is None else Standing(named, self.readings(named)[0])

    def readings(self, row: PrintedRow) -> tuple[dict[str, Any], ...]:
        """Return the settings of ours that a printed row means; none if we lack the method.

        There are several if its label is lost and leaves a choice.
        """
        ours = self.printed.methods.get(row.method, self.paper.methods.get(row.method, ()))
        return tuple(
            {"method.name": reading}
            if isinstance(reading, str)
            else {"method.name" if key == "name" else key: value for key, value in reading.items()}
            for reading in (ours if isinstance(ours, tuple) else (ours,))
        )

    def why_open(self, key: str, method: str, asks: Container[str], adaptation: str) -> str:
        """Return why the value of a setting is our reading; empty if the paper states it.

        Args:
            key: The setting's dotted key.
            method: The method of the row.
            asks: The dotted keys of other sections that it sets.
            adaptation: The adaptation of the row, or ``none``.
        """
        readings = self.paper.readings | self.printed.readings
        own = key.startswith("method.") and key != "method.name"
        exact = f"{method}.{key.removeprefix('method.')}" if own else key
        of_adaptation = f"adapt.{adaptation}.{key.removeprefix('adapt.')}"
        of_all = f"{method}.{ALL}" if own or key in asks else ""
        return next((readings[name] for name in (exact, of_adaptation, of_all) if name in readings), "")

    def prints_of(self, method: str) -> dict[str, Any]:
        """Return the printed values of a method that differ from our experiments, by dotted key."""
        prints = self.paper.prints | self.printed.prints
        return {re.sub(rf"^{re.escape(method)}\.", "method.", key): printed.value for key, printed in prints.items()}

    def checks(self) -> list[str]:
        """Return the known print errors of this table."""
        known = sorted((table.id for table in self.paper.tables), key=len, reverse=True)
        return [
            check
            for check in self.paper.checks
            if next((id_ for id_ in known if check.startswith(f"{id_} ")), "") == self.printed.id
        ]


def all_tables() -> list[Table]:
    """Return all tables of all papers."""
    return [
        Table(f"{paper.key}.{_squeezed(printed.id)}", paper, printed)
        for paper in map(_read, names(FOLDER))
        for printed in paper.tables
    ]


def get(table_id: str) -> Table:
    """Return a table by its id; case, spaces and hyphens are ignored.

    Raises:
        ConfigError: If the id is unknown; the message lists the ids.
    """
    tables = {_squeezed(table.id): table for table in all_tables()}
    wanted = _squeezed(table_id) if isinstance(table_id, str) else ""  # a caller may give anything
    if wanted not in tables:
        ids = [table.id for table in tables.values()]
        raise ConfigError(
            f"--paper: unknown table {as_found(table_id)}; there are {', '.join(ids)}{meant(table_id, ids)}"
        )
    return tables[wanted]


def lines() -> list[str]:
    """Return one line per table: its id, data set, number of rows, and what it measures."""
    return [
        f"{table.id:<30} {table.printed.dataset:<24} {len(table.printed.rows):>2} rows  {table.printed.metric}"
        + ("; by `fedshift costs`" if table.printed.costs else "")
        for table in all_tables()
    ]


@cache
def _experiments() -> Mapping[str, str]:
    """Return the experiments that name a printed table, by the squeezed id of the table."""
    files = {name: read_yaml(CONF / "experiments" / f"{name}.yaml") for name in names("experiments")}
    tables = {name: _squeezed(str(file["paper"])) for name, file in files.items() if "paper" in file}
    return {table: name for name, table in reversed(tables.items())}  # of several the first; rows name the others


@cache
def _read(name: str) -> PaperFile:
    return PaperFile.model_validate(read_yaml(CONF / FOLDER / f"{name}.yaml"))


def _has(config: Mapping[str, Any], required: Mapping[str, Any]) -> bool:
    return all(config.get(key) == value for key, value in required.items())


def _squeezed(text: str) -> str:
    return re.sub(r"[\s_-]", "", text).casefold()
