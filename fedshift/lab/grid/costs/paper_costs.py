"""Compares our costs with a paper's: ``fedshift costs ... --paper f2dc.table4``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedshift.lab.tables.papers import printed as printed_module
from fedshift.lab.tables.papers.printed import Cost, Table
from fedshift.lab.tables.results.settings import BASELINE
from fedshift_core.errors import ConfigError
from fedshift_core.plural import plural

if TYPE_CHECKING:
    from fedshift.lab.grid.costs.measuring import Costs

MEANINGS = {
    "sent": "parameters that all nodes send", "bytes_up": "bytes that all nodes send",
    "step_flops": "FLOPs of a step", "seconds": "seconds of one node's local round",
}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """The measured costs of a method, and the printed row to compare with.

    Attributes:
        name: The method as the table of costs names it.
        label: The printed label.
        ours: Our numbers by printed column, in the paper's units.
        printed: The paper's.
        times_ours: Our numbers as multiples of our FedAvg's; None if FedAvg was not measured.
        times_printed: The same for the paper.
    """

    name: str
    label: str
    ours: dict[str, float]
    printed: dict[str, float]
    times_ours: dict[str, float] | None
    times_printed: dict[str, float]


def table_of(paper: str) -> Table:
    """Return a printed table of costs.

    Raises:
        ConfigError: If there is no such table, or it prints no costs.
    """
    table = printed_module.get(paper)
    if not table.printed.costs:
        known = ", ".join(candidate.id for candidate in printed_module.all_tables() if candidate.printed.costs)
        raise ConfigError(f"--paper {table.id}: it prints {table.printed.metric}, no costs; allowed are {known}")
    return table


def pairs(table: Table, costs: "Sequence[tuple[str, Costs]]", nodes: int) -> list[Pair]:
    """Return the measured methods that the table prints, with their printed rows, for so many nodes."""
    columns = table.printed.costs
    plain = next(row for row in table.printed.rows if [*table.readings(row)] == [{"method.name": BASELINE}])
    theirs = {column: plain.value(column) or 0.0 for column in columns}
    rows = [(name, _ours(cost, nodes, columns), table.standing(cost.settings)) for name, cost in costs]
    base = next((ours for _, ours, standing in rows if standing is not None and standing.row == plain), None)
    matches = []
    for name, ours, standing in rows:
        if standing is not None:
            printed = {column: value for column in columns if (value := standing.row.value(column)) is not None}
            times = None if base is None else _times(ours, base)
            matches.append(Pair(name, standing.row.method, ours, printed, times, _times(printed, theirs)))
    return matches


def rows(columns: Sequence[str], row_pairs: Sequence[Pair]) -> list[tuple[str, ...]]:
    """Return the head and two lines a pair, ours and the paper's, each number with its multiple of FedAvg's."""
    lines: list[tuple[str, ...]] = [("method", *columns)]
    for pair in row_pairs:
        lines.append((pair.name, *(_cell(pair.ours, pair.times_ours or {}, column) for column in columns)))
        printed = (_cell(pair.printed, pair.times_printed, column) for column in columns)
        lines.append((f"  paper: {pair.label}", *printed))
    return lines


def notes(table: Table, nodes: int) -> list[str]:
    """Return notes on the meaning of the numbers."""
    ours = "; ".join(f"{column}: {MEANINGS[cost.of]}" for column, cost in table.printed.costs.items())
    return [
        f"{table.id}: {table.paper.paper} ({table.paper.venue}), {table.printed.id}, {table.printed.dataset}: "
        f"{table.printed.about}; here {plural(nodes, 'node')}",
        f"in brackets: as a multiple of {BASELINE}'s; ours is, in the paper's units, {ours}",
        *table.printed.costs_notes,
    ]


def _ours(costs: "Costs", nodes: int, columns: dict[str, Cost]) -> dict[str, float]:
    """Return our number for each printed column, from the measured costs and the number of nodes, per round."""
    values = {
        "sent": costs.parameters.sent * nodes, "bytes_up": costs.bytes_up, "step_flops": costs.step_flops,
        "seconds": costs.seconds,
    }  # fmt: skip
    return {column: values[cost.of] / cost.unit for column, cost in columns.items()}


def _times(values: dict[str, float], base: dict[str, float]) -> dict[str, float]:
    return {column: value / base[column] for column, value in values.items() if base[column]}


def _cell(values: dict[str, float], times: dict[str, float], column: str) -> str:
    if column not in values:
        return "-"
    return f"{values[column]:.2f}" + (f" ({times[column]:.2f})" if column in times else "")
