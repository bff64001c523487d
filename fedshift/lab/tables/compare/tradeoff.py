"""The trade-off of accuracy and costs: ``fedshift compare --costs FILE``, a file of ``fedshift costs --json``."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from fedshift.lab.tables.compare.rows import Row, named
from fedshift.lab.tables.results import differences as contents
from fedshift.lab.tables.results.differences import shown as shown_value
from fedshift.lab.tables.results.settings import ASIDE
from fedshift_app.config.keys import BATCH_SIZE, COST_SECTIONS, EPOCHS, SIZE
from fedshift_app.config.sections import AggregationConfig, ServerConfig
from fedshift_clients.training.settings import ModelConfig
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, shown
from fedshift_core.plural import plural
from fedshift_core.spelling import meant

MOST_COSTS = 10_000  # of a file
MEGA, GIGA = 1e6, 1e9
FREE_OF_COST = ("method.repeatable_noise",)  # the source of noise does not change the costs
#: Labels of the costs on an axis.
BYTES, SECONDS, FLOPS = "MB a round", "s a local round", "GFLOPs a step"
#: The settings of training and images on which each depends. A network may have more parameters for larger images; the
#: FLOPs of a step depend on epochs where they are the mean over phases of the local round.
DEPENDS = {BYTES: (SIZE,), SECONDS: (BATCH_SIZE, EPOCHS, SIZE), FLOPS: (BATCH_SIZE, EPOCHS, SIZE)}


class _Step(BaseModel, frozen=True, extra="ignore"):
    epochs: int = Field(ge=1)


class _Measured(BaseModel, frozen=True, extra="ignore", allow_inf_nan=False):
    """A row of ``fedshift costs --json``; a method with several kinds of rounds has one row for each.

    Files of earlier versions have neither batch size, epochs nor image size under ``settings``. ``batch`` and ``steps``
    say the first two.
    """

    settings: dict[str, Any]
    batch: int | None = Field(None, ge=1)
    steps: tuple[_Step, ...] = Field((), max_length=MOST_COSTS)
    bytes_up: int = Field(ge=0)
    bytes_down: int = Field(ge=0)
    step_flops: float = Field(ge=0)
    seconds: float = Field(ge=0)

    @property
    def paid(self) -> dict[str, float]:
        """Its costs."""
        return {
            BYTES: (self.bytes_up + self.bytes_down) / MEGA, SECONDS: self.seconds, FLOPS: self.step_flops / GIGA,
        }  # fmt: skip

    def unlike(self, row: Row, what: str) -> dict[str, Any]:
        """Return the settings in which it differs from a row and on which a cost depends, with its values."""
        depends = [key for key in DEPENDS[what] if key != EPOCHS or what != FLOPS or len(self.steps) > 1]
        return {key: value for key in depends if (value := self._other(row, key)) is not None}

    def _other(self, row: Row, key: str) -> Any:
        """Return its value of a setting if that is not the row's; None if it is, or is not known."""
        ours = row.runs[0].config.get(key)
        if key in self.settings:
            return None if self.settings[key] == ours else shown_value(self.settings[key])
        if key == BATCH_SIZE and self.batch is not None and ours is not None:
            held = {node.get("num_examples") for run in row.runs for node in run.results.nodes}
            smaller = self.batch in held and self.batch < ours  # a node with fewer images than a batch
            return None if self.batch == ours or smaller else self.batch
        if key == EPOCHS and self.steps:  # phases may share the epochs, or come before or after them
            epochs = [step.epochs for step in self.steps]
            return None if ours in (*epochs, sum(epochs)) else max(epochs)
        return None


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

    def row(self, row: Row) -> Mapping[str, float]:
        """Return the costs of a row: MB of all messages of a round, both ways, seconds of a local round, GFLOPs a step.

        Of several kinds of rounds the most expensive counts. Costs are left out that were not measured, or with another
        batch size, other epochs or another image size, if they depend on it.
        """
        paid: dict[str, float] = {}
        for measured in self.of.get(_deciding(row.runs[0].config), ()):
            for what, price in measured.paid.items():
                if not measured.unlike(row, what):
                    paid[what] = max(price, paid.get(what, 0.0))
        return paid

    def withheld(self, row: Row) -> tuple[str, ...]:
        """Return the costs that were measured with other settings than the row's alone, and these settings."""
        measured = self.of.get(_deciding(row.runs[0].config), ())
        lacking = [what for what in DEPENDS if measured and what not in self.row(row)]
        unlike = [one.unlike(row, what) for what in lacking for one in measured]
        values: dict[str, list[str]] = {}
        for key, value in (item for each in unlike for item in each.items()):
            values.setdefault(key, []).append(str(value))
        differ = [
            f"{key}={' or '.join(dict.fromkeys(each))} (the row has {shown_value(row.runs[0].config.get(key))})"
            for key, each in values.items()
        ]
        return (", ".join(lacking), ", ".join(differ)) if lacking else ()


def read(file: Path, experiments: Sequence[str]) -> Costs:
    """Read the output of ``fedshift costs ... --json``.

    Args:
        file: The file.
        experiments: The experiments of the runs.

    Raises:
        ConfigError: If the file is not such an output, or no run has its experiment.
    """
    try:
        content = _File.model_validate_json(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"--costs {shown(file)}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise ConfigError(
            f"--costs {shown(file)}: {where}: {first['msg']}; it takes what `fedshift costs ... --json` prints"
        ) from None
    if content.experiment not in experiments:
        raise ConfigError(
            f"--costs {shown(file)}: measured in {as_found(content.experiment)}; the runs are of "
            f"{', '.join(experiments)}{meant(content.experiment, experiments)}"
        )
    by_settings: dict[str, list[_Measured]] = {}
    for costs in content.costs:
        by_settings.setdefault(_deciding(costs.settings), []).append(costs)
    return Costs(
        by_settings, f"measured in {content.experiment}, {plural(content.nodes, 'node')}, on {content.machine}"
    )


def _deciding(settings: Mapping[str, Any]) -> str:
    """Return the settings that may change the costs; of weights and rates only whether they are 0.

    Keys that a file of an earlier version lacks have their defaults, as in a run of that version.
    """
    complete = _defaults() | dict(settings)
    counted = {
        key: "any" if isinstance(value, float) and value else value
        for key, value in complete.items() if key.startswith(COST_SECTIONS) and key not in (*ASIDE, *FREE_OF_COST)
    }  # fmt: skip
    return json.dumps(counted, sort_keys=True)


@functools.cache
def _defaults() -> dict[str, Any]:
    """Return the defaults of the sections that decide costs, by dotted key, as JSON has them."""
    sections: dict[str, type[BaseModel]] = {
        "aggregation": AggregationConfig,
        "server": ServerConfig,
        "model": ModelConfig,
    }
    return {
        f"{name}.{key}": list(field.default) if isinstance(field.default, tuple) else field.default
        for name, section in sections.items() for key, field in section.model_fields.items() if not field.is_required()
    }  # fmt: skip


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
    for task in dict.fromkeys((row.group, row.scored) for _, _, row in points):
        among = [i for i, (_, _, row) in enumerate(points) if (row.group, row.scored) == task]
        if contents.unlike(run for i in among for run in points[i][2].runs):
            continue
        on = front([(points[i][0], -points[i][1] if lowest else points[i][1]) for i in among])
        fronts.append([among[i] for i in on])
    return fronts


def paid(rows: Sequence[Row], costs: Costs, headline: str) -> dict[str, list[tuple[float, float, Row]]]:
    """Return, for each kind of cost, the cost and mean ``headline`` of each row with both."""
    points: dict[str, list[tuple[float, float, Row]]] = {}
    for row in rows:
        of, value = costs.row(row), row.values.get(headline)
        if value is not None and value.mean is not None:
            for what, price in of.items():
                points.setdefault(what, []).append((price, value.mean, row))
    return points


def notes(rows: Sequence[Row], costs: Costs, headline: str, lowest: bool) -> list[str]:
    """Return notes on the Pareto front of each cost and on missing costs."""
    lines = []
    alike = " that is scored as it is" if len({row.scored for row in rows}) > 1 else ""
    for what, points in paid(rows, costs, headline).items():
        better = "a lower" if lowest else "more"
        for on in on_fronts(points, lowest):
            names = [f"{named(points[i][2])} ({points[i][0]:.4g}, {points[i][1]:.1f})" for i in on]
            lines.append(
                f"no other row{alike} has {better} {headline} for as little or less, {what}: {', '.join(names)}"
            )
    withheld: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if why := costs.withheld(row):
            withheld.setdefault(why, []).append(row.label)
    if lacking := [row.label for row in rows if not costs.row(row) and not costs.withheld(row)]:
        lines.append(f"no costs of {', '.join(lacking)}")
    lines += [
        f"no {what} of {', '.join(labels)}: measured with {differ}" for (what, differ), labels in withheld.items()
    ]
    for group in dict.fromkeys(row.group for row in rows):
        members = [row for row in rows if row.group == group and costs.row(row)]
        if contents.unlike(run for row in members for run in row.runs):
            where = f" [{group}]" if group else ""
            lines.append(f"no row is named as the best for its costs{where}: rows are of {contents.OTHER_IMAGES}")
    return [
        *lines,
        f"costs: {costs.measured}; MB a round: of all messages, both ways; of several kinds of rounds the dearest",
    ]
