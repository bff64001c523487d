"""The request of ``fedshift tune``: methods, their runs, and the search space of each."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from fedshift.lab.grid.sweep import grid
from fedshift.lab.grid.sweep.grid import GridRequest, Point
from fedshift_app.config import registry
from fedshift_app.config.keys import as_requested, flat
from fedshift_app.config.layers import parse_set
from fedshift_app.config.options_of_a_kind import UnusedKeyError
from fedshift_core import ranges
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.limits import as_found, shortened
from fedshift_core.plural import plural
from fedshift_core.ranges import Range
from fedshift_core.yaml_files import parse, written

MOST_TRIALS = 10_000  # of a method
SHARED = "fedavg"  # whose file says where every method is searched
SEARCH = "search."  # prefix of a key that sets a range, or switches its search off
OFF = "off"
POWER = re.compile(r"(?<![\w.])(\d+)(e[+-]?\d+)")  # as 1e-3, which YAML 1.1 reads as text
FRACTION = "allocation.validation_fraction"
USUAL_FRACTION = 0.2  # where the experiment sets no validation images aside
#: Further keys of a trial: it reads no test image, so the choice cannot depend on any.
OF_TRIALS = {"evaluate.test": "false", "evaluate.client_models": "off", "evaluate.figures": "false", "report": "false"}


class Options(grid.Options):
    """The keys of a search itself."""

    budget: int = Field(ge=1, le=MOST_TRIALS)  # trials of each method, with that of its own values
    pruning: bool = True  # end trials early that are worse than the median
    trial_rounds: int | None = Field(default=None, ge=1)  # of a trial; None: as many as the runs that are compared


@dataclass(frozen=True)
class Plan:
    """The search of one method.

    Attributes:
        method: Its name.
        space: The ranges to search, by dotted key.
        default: The method's own values of these keys.
        base: The method as it is, with the first seed.
        given: The keys behind it, without those of the search.
        experiment: Its experiment; empty for the default one.
        rounds: Of a trial.
    """

    method: str
    space: Mapping[str, Range]
    default: Mapping[str, Any]
    base: Point
    given: Mapping[str, str]
    experiment: str
    rounds: int

    @property
    def label(self) -> str:
        """The method's label for people, which names approximations."""
        return registry.label(self.method)

    def trial(self, values: Mapping[str, Any]) -> Point:
        """Return the run that tries some values. It differs from the method only in these and reads no test image."""
        tried = {key: written(value) for key, value in values.items()}
        fewer = {} if self.rounds == self.base.config.rounds else {"rounds": str(self.rounds)}
        return grid.point(self.label, self.experiment, {**self.given, **OF_TRIALS, **fewer, **tried})


@dataclass(frozen=True)
class Request:
    """A search as it was typed.

    Attributes:
        grid_request: The keys of its runs.
        options: Its own keys.
        plans: The search of each method.
        notes: Notes for the user, one per line.
    """

    grid_request: GridRequest
    options: Options
    plans: tuple[Plan, ...]
    notes: tuple[str, ...]

    @property
    def key(self) -> str:
        """Return the name of the search, which a larger budget or more seeds do not change."""
        spaces = [[p.base.key, {key: place.as_yaml() for key, place in sorted(p.space.items())}] for p in self.plans]
        fewer = [] if self.options.trial_rounds is None else [self.options.trial_rounds]
        content = json.dumps([self.options.pruning, sorted(spaces, key=str), *fewer], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:8]

    def finals(self, chosen: Mapping[str, Mapping[str, Any]]) -> list[Point]:
        """Return the runs to compare: each method with its default and its chosen values, for each seed.

        Args:
            chosen: The values by dotted key, for each method; none if the search found nothing better.
        """
        points = []
        seeds = self.grid_request.values.get("seed", ("",))
        for seed in seeds:
            for plan in self.plans:
                given = {**plan.given, **({"seed": seed} if seed else {})}
                suffix = f" seed={seed}" if len(seeds) > 1 else ""
                points.append(grid.point(f"{plan.label}{suffix}", self.grid_request.experiment, given))
                values = chosen.get(plan.method)
                if values:
                    given |= {key: written(value) for key, value in values.items()}
                    given["tuned"] = written({key: plan.default[key] for key in values})
                    points.append(grid.point(f"{plan.label} tuned{suffix}", self.grid_request.experiment, given))
        return points


def read(arguments: Sequence[str]) -> Request:
    """Read ``[EXPERIMENT] [method=A,B] budget=N [seed=0,1,2] [KEY=VALUE ...] [search.KEY=RANGE ...]``.

    Raises:
        ConfigError: If a key is wrong, or a method takes no value of its range.
        FedShiftError: If the configuration of a method is wrong; the message names it.
    """
    searched = [argument for argument in arguments if argument.startswith(SEARCH) and "=" in argument]
    request = grid.read([argument for argument in arguments if argument not in searched], Options)
    options = request.options
    assert isinstance(options, Options)  # it was read with these
    _check(request)
    where = dict(_place(*argument.removeprefix(SEARCH).split("=", 1)) for argument in searched)
    methods = request.methods
    grid.lacking(request.values, methods)
    grid.lacking(where, methods, SEARCH)
    notes: list[str] = []
    left_out: list[UnusedKeyError] = []
    plans = tuple(_plan(request, method, options.trial_rounds, where, notes, left_out) for method in methods)
    return Request(request, options, plans, tuple(dict.fromkeys([*notes, *grid.noted(left_out, len(methods))])))


def _check(request: GridRequest) -> None:
    if "0" in request.values.get("rounds", ()):
        raise ConfigError("rounds=0 trains nothing, so there is nothing to search; tune needs rounds=1 or more")
    for key in request.varied:
        if key not in ("method", "seed"):
            raise ConfigError(f"{key}: a search has one value of this key; only method and seed may have several")
    for key in ("tuned", "evaluate.test"):
        if key in request.values:
            raise ConfigError(f"{key}: a search sets this key itself")


def _place(key: str, text: str) -> tuple[str, Range | None]:
    """Return the key of a range, and the range; None where the key is not searched."""
    name = f"{SEARCH}{shortened(key)}"
    try:
        stated = parse(POWER.sub(r"\1.0\2", text))
    except ValueError:
        raise ConfigError(f"{name}: {as_found(text)} is not YAML") from None
    return key.replace("-", "_"), None if text == OFF else ranges.read(stated, name)


def _plan(
    request: GridRequest,
    method: str,
    trial_rounds: int | None,
    where: Mapping[str, Range | None],
    notes: list[str],
    left_out: list[UnusedKeyError],
) -> Plan:
    given = {key: values[0] for key, values in request.values.items() if grid.belongs(key, method)}
    given["method"] = method
    try:
        base, unused = grid.used(method, request.experiment, given)
        left_out += unused
        if not base.config.allocation.validation_fraction:
            given[FRACTION] = written(USUAL_FRACTION)
            base = grid.point(method, request.experiment, given)
            notes.append(
                f"{FRACTION}={USUAL_FRACTION}: nodes set aside this share of their training images in all runs"
            )
        rounds = trial_rounds or base.config.rounds
        if rounds > base.config.rounds:
            raise ConfigError(f"trial-rounds={rounds} is more than the {plural(base.config.rounds, 'round')} of a run")
        space = _space(request.experiment, method, given, where)
    except FedShiftError as error:
        raise error.under(shortened(method)) from None
    known = as_requested(flat(base.config.model_dump(mode="json")))
    default = {key: known.get(key) for key in space}
    outside = [f"{key}={default[key]}" for key, place in space.items() if not place.holds(default[key])]
    if outside:
        notes.append(f"{method}: {', '.join(outside)} is outside its search range; its first trial uses it anyway")
    if not space:
        notes.append(f"{method}: nothing to search; its trial is the unchanged method")
    return Plan(method, space, default, base, given, request.experiment, rounds)


def _space(
    experiment: str, method: str, given: Mapping[str, str], where: Mapping[str, Range | None]
) -> dict[str, Range]:
    """Return a method's search space: the shared ranges, its own, and those of the command.

    A key that the command sets to a value is not searched, nor is one whose value another key of the command decides.

    Raises:
        ConfigError: If the method does not take the ends of a range.
    """
    declared = {**registry.get(SHARED).search, **registry.get(method).search}
    ranges_by_key = {key if "." in key else f"method.{key}": ranges.read(text, key) for key, text in declared.items()}
    fixed = {key.replace("-", "_") for key in given} | set(parse_set(given.get("set", "")))
    space: dict[str, Range] = {key: place for key, place in ranges_by_key.items() if key not in fixed}
    for key, place in where.items():
        if place is None:
            space.pop(key, None)
        elif grid.belongs(key, method):
            if key in fixed:
                raise ConfigError(f"{SEARCH}{key}: the command sets {key} as well")
            space[key] = place
    for key, place in tuple(space.items()):
        try:
            for end in place.ends():
                grid.point(method, experiment, {**given, **OF_TRIALS, key: written(end)})
        except UnusedKeyError:
            if key in where:
                raise
            del space[key]  # it stands for a key that the command sets
    return space
