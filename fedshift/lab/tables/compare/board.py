"""``fedshift compare --board``: one page with a table for each set of runs that compare.

A table has the numbers that ``compare`` has of the same runs (``pools`` says which stand in one).
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedshift.lab.tables.compare import run_facts
from fedshift.lab.tables.compare.pools import MOST_NAMED, comparisons, differing, numbers_in
from fedshift.lab.tables.compare.row_commands import from_here
from fedshift.lab.tables.compare.table import Numbers
from fedshift.lab.tables.papers.deviations import HELD_OUT
from fedshift.lab.tables.results import loading
from fedshift.lab.tables.results import metrics as run_metrics
from fedshift.lab.tables.results.differences import group_labels
from fedshift.lab.tables.results.grouping import grouped
from fedshift.lab.tables.results.loading import Run
from fedshift.lab.tables.results.places import with_inner
from fedshift.lab.tables.results.settings import BN_STATISTICS, NODES
from fedshift_app.features.bn_statistics import BN_STATISTICS_TEXT
from fedshift_core.errors import ConfigError
from fedshift_core.limits import some
from fedshift_core.wire.names import BN_SCORE

IN_DOMAIN, UNSEEN = "in-domain", "held out"


@dataclass(frozen=True)
class Table:
    """Runs that compare, with one way to score them.

    Attributes:
        split: ``IN_DOMAIN``, or ``UNSEEN`` where each domain is scored by the run whose nodes did not hold it.
        statistics: The way to take BatchNorm's statistics, as ``evaluate.bn`` has it.
        runs: The runs; leave-one-out runs are not joined.
        numbers: What ``compare`` has of them.
        score: The score, as ``--score`` has it.
        differs: What tells it from other tables of the same data set, network and split, besides its budget.
    """

    split: str
    statistics: str
    runs: tuple[Run, ...]
    numbers: Numbers
    score: str
    differs: str = ""

    @property
    def dataset(self) -> str:
        """The data set."""
        return self.runs[0].results.dataset

    @functools.cached_property
    def network(self) -> str:
        """The network of its rows, or their networks; a method may ask for another."""
        return run_facts.network(self.runs)


@dataclass(frozen=True)
class Board:
    """All tables, the largest of a data set and network first.

    Attributes:
        tables: The tables.
        left_out: Runs that are in no table, with the reason.
        unreadable: Those of them that cannot be read.
    """

    tables: tuple[Table, ...]
    left_out: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    @property
    def runs(self) -> int:
        """The number of runs that are in a table."""
        return len({id(run) for table in self.tables for run in table.runs})


def board(paths: Sequence[Path]) -> Board:
    """Make the tables of all finished runs.

    Args:
        paths: Run folders, kept files, folders that hold some, and folders of such folders.

    Raises:
        ConfigError: If no run is finished, or a named file or every file is not valid.
    """
    given = loading.read(with_inner(paths))
    made = of_runs(given.runs)
    left_out = (*made.left_out, *given.unfinished, *given.unreadable)
    return Board(made.tables, left_out, given.unreadable)


def of_runs(runs: Sequence[Run]) -> Board:
    """Make the tables of these runs.

    Raises:
        ConfigError: If no run is in a table.
    """
    left_out: list[str] = []
    runs = run_metrics.as_scored(runs, "last5")  # no score of the page chooses a round
    tables = [
        table
        for settled, numbers in comparisons(runs, "last5", left_out)
        for table in _views(settled, numbers, left_out)
    ]
    if not tables:
        raise ConfigError("; ".join(left_out) or "no runs")
    tables.sort(key=lambda table: (_kind(table), -len(table.runs)))  # stable: the views of the same runs stay together
    return Board(tuple(_told_apart(tables)), tuple(dict.fromkeys(left_out)))


def _views(runs: Sequence[Run], first: Numbers, left_out: list[str]) -> Iterator[Table]:
    """Yield the table of runs that compare for each way in which they were scored."""
    split = UNSEEN if runs[0].config[HELD_OUT] else IN_DOMAIN
    primary = str(runs[0].config[BN_STATISTICS])
    yield Table(split, primary, tuple(runs), first, "last5")
    for kind in BN_STATISTICS_TEXT:
        scored = [run for run in runs if f"{BN_SCORE}{kind}" in run.scores]
        if kind == primary or not scored:
            continue
        score = f"{BN_SCORE}{kind}"
        try:
            yield Table(split, kind, tuple(scored), numbers_in(scored, score), score)
        except run_metrics.NotScoredError:
            continue  # no such statistics of a domain that no node holds
        except ConfigError as error:
            left_out.append(f"left out, {score}: {some([run.name for run in scored], MOST_NAMED)}: {error}")


def _kind(table: Table) -> tuple[str, str, str]:
    """Return what a reader chooses by: data set, network, split."""
    return table.dataset, table.network, table.split


def _told_apart(tables: Sequence[Table]) -> Iterator[Table]:
    """Yield each table with the settings in which it differs from others that a reader finds next to it."""
    near = grouped(((*_kind(table), table.statistics), table) for table in tables)
    labels: dict[int, str] = {}
    for same in near.values():
        runs = [table.runs[0] for table in same]
        differences = differing(runs, held_out=same[0].split == UNSEEN)
        differences = {key: values for key, values in differences.items() if key not in _SAID}
        labels |= dict(zip(map(id, same), group_labels(runs, differences), strict=True))
    alike = grouped(
        ((*_kind(table), table.statistics, *run_facts.budget(table.runs), labels[id(table)]), table) for table in tables
    )
    for same in alike.values():
        for table in same if len(same) > 1 else ():  # they stand apart by folder
            folders = list(dict.fromkeys(from_here(run.place.parent) for run in table.runs))
            labels[id(table)] = ", ".join(filter(None, [labels[id(table)], f"runs of {some(folders, MOST_NAMED)}"]))
    yield from (replace(table, differs=labels[id(table)]) for table in tables)


#: Settings that a table's budget (``run_facts.budget``) and its title say, and how often a run was scored.
_SAID = (
    BN_STATISTICS,
    "rounds",
    "train.epochs",
    "dataset.size",
    "model.weights_sha256",
    "model.freeze",
    NODES,
    "evaluate.every",
    "evaluate.last",
)
