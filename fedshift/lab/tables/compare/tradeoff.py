"""The trade-off of accuracy and costs: ``fedshift compare --costs FILE``, a file of ``fedshift costs --json``."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from fedshift.lab.tables.compare.rows import Row, runs_of
from fedshift.lab.tables.results import differences as contents
from fedshift.lab.tables.results.grouping import grouped
from fedshift.lab.tables.results.settings import ASIDE
from fedshift_app.config.keys import BATCH_SIZE, COST_SECTIONS, EPOCHS, SIZE
from fedshift_app.run.files import checked, read_json
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, shown
from fedshift_core.plural import plural
from fedshift_core.spelling import meant

MOST_COSTS = 10_000  # of a file
MEGA, GIGA = 1e6, 1e9
FREE_OF_COST = ("method.repeatable_noise",)  # the source of noise does not change the costs
#: Labels of the costs on an axis.
BYTES, SECONDS, FLOPS = "MB a round", "s a local round", "GFLOPs a step"


class _Measured(BaseModel, frozen=True, extra="ignore", allow_inf_nan=False):
    """A row of ``fedshift costs --json``; a method with several kinds of rounds has one row for each."""

    settings: dict[str, Any]
    bytes_up: int = Field(ge=0)
    bytes_down: int = Field(ge=0)
    step_flops: float = Field(ge=0)
    seconds: float = Field(ge=0)

    @property
    def paid(self) -> dict[str, float]:
        """Its costs."""
        return {BYTES: (self.bytes_up + self.bytes_down) / MEGA, SECONDS: self.seconds, FLOPS: self.step_flops / GIGA}


class _File(BaseModel, frozen=True, extra="ignore"):
    experiment: str
    nodes: int
    machine: str
    costs: tuple[_Measured, ...] = Field(min_length=1, max_length=MOST_COSTS)


@dataclass(frozen=True)
class Costs:
    """The costs of each method.

    Attributes:
        of: What was measured, by the settings that determine it (``_deciding``).
        measured: Where and on which machine they were measured.
    """

    of: Mapping[str, Sequence[_Measured]]
    measured: str

    def row(self, row: Row) -> dict[str, float]:
        """Return the costs of a row: MB of all messages of a round, both ways, seconds of a local round, GFLOPs a step.

        Of several kinds of rounds the most expensive counts. A row that was not measured with its settings has none.
        """
        measured = self.of.get(_deciding(row.runs[0].config), ())
        return {what: max(each.paid[what] for each in measured) for what in (BYTES, SECONDS, FLOPS) if measured}


def read(file: Path, experiments: Sequence[str]) -> Costs:
    """Read the output of ``fedshift costs ... --json``.

    Args:
        file: The file.
        experiments: The experiments of the runs.

    Raises:
        ConfigError: If the file is not such an output, or no run has its experiment.
    """
    try:
        content = checked(_File, read_json(file), shown(file))
    except ConfigError as error:
        raise ConfigError(f"--costs {error}; it takes what `fedshift costs ... --json` prints") from None
    if content.experiment not in experiments:
        raise ConfigError(
            f"--costs {shown(file)}: measured in {as_found(content.experiment)}; the runs are of "
            f"{', '.join(experiments)}{meant(content.experiment, experiments)}"
        )
    return Costs(
        grouped((_deciding(costs.settings), costs) for costs in content.costs),
        f"measured in {content.experiment}, {plural(content.nodes, 'node')}, on {content.machine}",
    )


def _deciding(settings: Mapping[str, Any]) -> str:
    """Return the settings that may change the costs; of weights and rates only whether they are 0."""
    counted = {
        key: "any" if isinstance(value, float) and value else value
        for key, value in settings.items()
        if key in (BATCH_SIZE, EPOCHS, SIZE) or (key.startswith(COST_SECTIONS) and key not in (*ASIDE, *FREE_OF_COST))
    }
    return json.dumps(counted, sort_keys=True)


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the points on the Pareto front, the cheapest first.

    Args:
        points: Cost and score. A point is on the front if no other point has a higher score for at most its cost, or
            the same score for less. Of equal points, all are on the front.
    """
    on: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1], i)):
        if not on or points[i][1] > points[on[-1]][1] or points[i] == points[on[-1]]:
            on.append(i)
    return on


def on_fronts(points: Sequence[tuple[float, float, Row]], lowest: bool) -> list[list[int]]:
    """Return the Pareto front of each group of rows that are scored alike, the cheapest first.

    Args:
        points: Cost, score and row.
        lowest: Whether the lowest score is the best.

    Returns:
        The fronts; a group whose rows have different images has none.
    """
    fronts = []
    for among in grouped(((row.group, row.scored), i) for i, (_, _, row) in enumerate(points)).values():
        if contents.unlike(runs_of(points[i][2] for i in among)):
            continue
        on = front([(points[i][0], -points[i][1] if lowest else points[i][1]) for i in among])
        fronts.append([among[i] for i in on])
    return fronts


def paid(rows: Sequence[Row], costs: Costs, headline: str) -> dict[str, list[tuple[float, float, Row]]]:
    """Return, for each kind of cost, the cost and mean ``headline`` of each row with both."""
    return grouped(
        (what, (price, score, row))
        for row in rows
        if (score := row.value(headline).mean) is not None
        for what, price in costs.row(row).items()
    )


def notes(rows: Sequence[Row], costs: Costs, headline: str, lowest: bool) -> list[str]:
    """Return notes on the Pareto front of each cost and on missing costs."""
    lines = []
    for what, points in paid(rows, costs, headline).items():
        better = "a lower" if lowest else "more"
        for on in on_fronts(points, lowest):
            names = [f"{points[i][2].name} ({points[i][0]:.4g}, {points[i][1]:.1f})" for i in on]
            lines.append(
                f"no other row that is scored alike has {better} {headline} for as little or less, {what}: "
                f"{', '.join(names)}"
            )
    if without := [row.label for row in rows if not costs.row(row)]:
        lines.append(f"no costs of {', '.join(without)}: not measured with their settings")
    for group, members in grouped((row.group, row) for row in rows if costs.row(row)).items():
        if contents.unlike(runs_of(members)):
            where = f" [{group}]" if group else ""
            lines.append(f"no row is named as the best for its costs{where}: rows are of {contents.OTHER_IMAGES}")
    return [
        *lines,
        f"costs: {costs.measured}; MB a round: of all messages, both ways; of several kinds of rounds the dearest",
    ]
