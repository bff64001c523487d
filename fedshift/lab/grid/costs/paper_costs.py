"""Compares our costs with a paper's: ``fedshift costs ... --paper f2dc.table4``."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedshift.lab.tables.papers import printed as printed_module
from fedshift.lab.tables.papers.printed import Table
from fedshift.lab.tables.results.settings import BASELINE
from fedshift_core.errors import ConfigError
from fedshift_core.plural import plural

if TYPE_CHECKING:
    from fedshift.lab.grid.costs.measuring import Costs

MEANINGS = {
    "sent": "parameters that all nodes send",
    "bytes_up": "bytes that all nodes send",
    "step_flops": "FLOPs of a step",
    "seconds": "seconds of one node's local round",
}
Numbers = Mapping[str, float]


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


def pairs(table: Table, costs: "Sequence[Costs]", nodes: int) -> list[dict[str, Any]]:
    """Return the measured methods that the table prints, each with its printed row, for so many nodes.

    Numbers are by printed column and in the paper's units; ``times_ours`` and ``times_printed`` are multiples of
    FedAvg's, the former None where FedAvg was not measured.
    """
    columns = table.printed.costs
    plain = next(row for row in table.printed.rows if [*table.readings(row)] == [{"method.name": BASELINE}])
    theirs = {column: plain.number(column).mean or 0.0 for column in columns}
    matches: list[dict[str, Any]] = []
    base: Numbers | None = None
    for each in costs:
        sent = each.parameters.sent * nodes
        values = {"sent": sent, **{name: getattr(each, name) for name in MEANINGS if name != "sent"}}
        ours = {column: values[cost.of] / cost.unit for column, cost in columns.items()}
        if (standing := table.standing(each.settings)) is not None:
            base = ours if standing.row == plain and base is None else base
            printed = {column: value for column in columns if (value := standing.row.number(column).mean) is not None}
            pair = {"name": each.name, "label": standing.row.method, "ours": ours, "printed": printed}
            matches.append(pair | {"times_printed": _times(printed, theirs)})
    return [{**pair, "times_ours": base and _times(pair["ours"], base)} for pair in matches]


def rows(columns: Sequence[str], of: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return the head and two lines a pair, ours and the paper's, each number with its multiple of FedAvg's."""
    lines: list[tuple[str, ...]] = [("method", *columns)]
    for pair in of:
        for name, key in ((pair["name"], "ours"), (f"  paper: {pair['label']}", "printed")):
            lines.append((name, *_cells(columns, pair[key], pair[f"times_{key}"] or {})))
    return lines


def _cells(columns: Sequence[str], values: Numbers, times: Numbers) -> list[str]:
    multiples = {column: f" ({times[column]:.2f})" for column in times}
    return [f"{values[column]:.2f}{multiples.get(column, '')}" if column in values else "-" for column in columns]


def _times(values: Numbers, base: Numbers) -> dict[str, float]:
    return {column: value / base[column] for column, value in values.items() if base[column]}


def notes(table: Table, nodes: int) -> list[str]:
    """Return notes on the meaning of the numbers."""
    ours = "; ".join(f"{column}: {MEANINGS[cost.of]}" for column, cost in table.printed.costs.items())
    return [
        f"{table.id}: {table.paper.paper} ({table.paper.venue}), {table.printed.id}, {table.printed.dataset}: "
        f"{table.printed.about}; here {plural(nodes, 'node')}",
        f"in brackets: as a multiple of {BASELINE}'s; ours is, in the paper's units, {ours}",
        *table.printed.costs_notes,
    ]
