"""The grid of ``fedshift sweep``: its runs, all resolved and checked before the first one starts."""

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from fedshift.run.engine import NAME as INLINE
from fedshift.run.launch import worker_count
from fedshift_app.config import registry, run_name
from fedshift_app.config import resolving as configuration
from fedshift_app.config.arguments import LAUNCH_KEYS, not_empty, parse_arguments
from fedshift_app.config.error_messages import explaining
from fedshift_app.config.keys import FREE
from fedshift_app.config.options_of_a_kind import UnusedKeyError
from fedshift_app.config.sections import RunConfig
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.limits import MOST_CORES, as_found, shortened
from fedshift_core.params import ConfigModel
from fedshift_core.plural import plural

MOST_RUNS = 10_000  # of a grid
#: Keys that name no list: their commas are part of the value. None of them decides a number of a run.
UNSPLIT_KEYS = {"data-dir", "output-dir", "profile", "tracking", "set", "keep_rounds", "keep-rounds", *LAUNCH_KEYS}
UNSPLIT_KEYS.remove("nodes")
#: Keys that only a simulation has: a sweep that names one and no engine is simulated.
OF_SIMULATION = ("actors", "cpus-per-client", "gpus-per-client")

REFUSED = {
    "experiment": "the experiment of a grid is its first argument, and only one",
    run_name.KEY: "the runs of a grid are named by FedShift; leave the key out",
    "resume": "the same command continues an interrupted sweep",
}
#: Sections that do not affect whether method, network and modules go together; all others may.
FREE_OF_MODELS = {
    "seed",
    "rounds",
    "train",
    "allocation",
    "federation",
    "tracking",
    "profile",
    "keep",
    "keep_rounds",
    "checkpoint_seconds",
}


class Options(ConfigModel):
    """The keys of a sweep itself."""

    #: Runs side by side, inline only, one CPU thread each; None: as many as there are cores.
    jobs: int | None = Field(None, ge=1, le=MOST_CORES)
    #: Which key changes last: with seed-first all methods have one seed before the first has two.
    order: Literal["seed-first", "method-first"] = "seed-first"
    retries: int = Field(1, ge=0, le=1000)  # how often a run that failed is tried again, at the end of the grid
    #: Take finished runs of the same output-dir for those of this grid, if they have the same configuration and
    #: versions. Off: changes to the code within a version show in no configuration.
    reuse: bool = False


@dataclass(frozen=True)
class GridRequest:
    """A sweep as it was typed.

    Attributes:
        experiment: Its experiment; empty for the default one.
        values: The values of each key, in the order of typing.
        options: The sweep's own keys.
    """

    experiment: str
    values: dict[str, tuple[str, ...]]
    options: Options

    @property
    def varied(self) -> list[str]:
        """Return the keys with more than one value."""
        return [key for key, values in self.values.items() if len(values) > 1]

    @property
    def methods(self) -> tuple[str, ...]:
        """Its methods."""
        return self.values.get("method") or (
            str(configuration.resolve({"experiment": self.experiment}).method["name"]),
        )


@dataclass(frozen=True)
class Point:
    """A run of the grid.

    Attributes:
        label: Names it for people: the method, and the keys that vary.
        arguments: What ``fedshift run`` is given, but for ``output-dir``.
        flat: Its run-config keys.
        launch: Its launch keys.
        config: The resolved configuration.
        nodes: How many nodes it has.
        key: :func:`identity` of both.
    """

    label: str
    arguments: tuple[str, ...]
    flat: dict[str, Any]
    launch: dict[str, Any]
    config: RunConfig
    nodes: int
    key: str

    @property
    def is_inline(self) -> bool:
        """Whether it uses the inline engine."""
        return bool(self.launch.get("engine") == INLINE)


def read(arguments: Sequence[str], kind: type[Options] = Options) -> GridRequest:
    """Read ``[EXPERIMENT] [key=value,value ...]``, with the keys of a command itself.

    Raises:
        ConfigError: If an argument is not of that form, a key comes twice, or a key of the command has a wrong value.
    """
    named = [*arguments[:1]] if arguments and "=" not in arguments[0] else []
    single = {spelt for name in kind.model_fields for spelt in (name, name.replace("_", "-"))}
    values, own = values_of(arguments[len(named) :], single)
    for key, why in REFUSED.items():
        if key in values:
            raise ConfigError(f"{key}: {why}")
    with explaining():
        options = kind.model_validate({key.replace("-", "_"): value for key, value in own.items()})
    if "method.name" in values:
        values["method"] = values.pop("method.name")
    values.setdefault("report", ("false",))  # a sweep makes one comparison instead
    if values.keys().isdisjoint(OF_SIMULATION):
        values.setdefault("engine", (INLINE,))
    if (runs := math.prod(map(len, values.values()))) > MOST_RUNS:
        raise ConfigError(f"a grid has at most {MOST_RUNS} runs, found {as_found(runs)}")
    if (options.jobs or 1) > 1 and values.get("engine") != (INLINE,):
        raise ConfigError(f"jobs={options.jobs} needs engine={INLINE}: a simulation uses all cores")
    return GridRequest("".join(named), values, options)


def values_of(words: Sequence[str], single: Collection[str]) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Return the values of each ``KEY=VALUE,VALUE``, and those of the keys in ``single``, which have one.

    Raises:
        ConfigError: If a word is not of that form, a key comes twice, or a value is empty.
    """
    values: dict[str, tuple[str, ...]] = {}
    own: dict[str, str] = {}
    for word in words:
        key, sep, value = word.partition("=")
        if not sep:
            raise ConfigError(f"{as_found(word)} is not of the form key=value or key=value,value")
        if key in values or key in own:
            key = shortened(key)
            raise ConfigError(f"{key} comes twice; a key may hold several values: {key}=A,B")
        if key in single:
            own[key] = not_empty(key, value)
        else:
            values[key] = (not_empty(key, value),) if key in UNSPLIT_KEYS else split(key, value)
    return values, own


def split(key: str, text: str) -> tuple[str, ...]:
    """Split a value at its commas, except those in brackets and in quotes.

    Raises:
        ConfigError: If a part is empty or comes twice.
    """
    parts, start, depth, quote = [], 0, 0, ""
    for i, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == "," and depth <= 0:
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    if "" in parts:
        raise ConfigError(f"{shortened(key)}: a value is missing in {as_found(text)}")
    [(part, times)] = Counter(parts).most_common(1)
    if times > 1:
        raise ConfigError(f"{shortened(key)}: the value {as_found(part)} comes twice in {as_found(text)}")
    return tuple(parts)


def points(request: GridRequest) -> tuple[list[Point], list[str]]:
    """Return all runs of the grid in order, and notes for the user, one per line.

    ``method.KEY`` is left out for methods without such a parameter, and any other key for runs in which it does
    nothing; runs that are then equal become one run.

    Raises:
        ConfigError: If the configuration of a run is wrong; the message names the run. If no method of the grid has a
            ``method.KEY``, or a key does nothing in any run.
    """
    distinct: dict[str, Point] = {}
    unused: list[UnusedKeyError] = []
    outermost = request.options.order.removesuffix("-first")
    keys = sorted(request.values, key=lambda key: key != outermost)  # the last one changes first
    chosen = itertools.product(*(request.values[key] for key in keys))
    combinations = [dict(zip(keys, values, strict=True)) for values in chosen]
    methods = request.methods
    notes = lacking(request.values, methods)
    for combination in combinations:
        method = combination.get("method", methods[0])
        given = {key: value for key, value in combination.items() if belongs(key, method)}
        named = [f"{key}={given[key]}" for key in request.varied if key in given and key != "method"]
        label = " ".join([registry.label(method), *named])
        try:
            run, left_out = used(label, request.experiment, given)
        except FedShiftError as error:
            raise error.under(shortened(label)) from None
        distinct.setdefault(run.key, run)
        unused += left_out
    notes += noted(unused, len(combinations))
    if len(distinct) < len(combinations):
        notes.append(f"{plural(len(distinct), 'run')} instead of {len(combinations)}: equal configurations count once")
    return list(distinct.values()), notes


def check(runs: Iterable[Point]) -> None:
    """Check images and networks of runs, once for all that share them.

    Raises:
        FedShiftError: If they are missing, or do not go together; the message names the run.
    """
    from fedshift.run import checking  # torch: tables use the rest of this module without it

    checked: set[str] = set()
    for run in runs:
        data = run.config.model_dump_json(include={"dataset", "allocation", "seed"}) + str(run.nodes)
        model = run.config.model_dump_json(exclude=FREE_OF_MODELS)
        try:
            if data not in checked:
                checking.check_data(run.config, run.nodes)
            if model not in checked:
                checking.check_model(run.config)
        except FedShiftError as error:
            raise error.under(shortened(run.label)) from None
        checked |= {data, model}


def identity(config: RunConfig, nodes: int) -> str:
    """Return the hash of everything that determines the numbers of a run."""
    content = config.model_dump(mode="json") | {"nodes": nodes}
    # The run's folder has the hash of what it fetched; who asks for it has none yet.
    for dotted in (*FREE, *["model.weights_sha256"] * config.model.download):
        section, _, key = dotted.rpartition(".")
        (content[section] if section else content).pop(key, None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def grid_hash(keys: Sequence[str]) -> str:
    """Return the name of a grid with these runs, independent of their order."""
    return hashlib.sha256(" ".join(sorted(keys)).encode()).hexdigest()[:8]


def belongs(key: str, method: str) -> bool:
    """Tell whether a key is one of a method: ``method.KEY`` is where it has such a parameter, and any other key."""
    section, _, param = key.replace("-", "_").partition(".")
    return section != "method" or param in ("", "name") or param in registry.get(method).known_keys()


def lacking(keys: Iterable[str], methods: Sequence[str], above: str = "") -> list[str]:
    """Return notes on parameters that some of the methods lack; messages put ``above`` before a key.

    Raises:
        ConfigError: If all do.
    """
    notes = []
    for key in keys:
        without = [method for method in methods if not belongs(key, method)]
        if len(without) == len(methods):
            known = "; ".join(f"{m} has {', '.join(registry.get(m).known_keys()) or 'none'}" for m in methods)
            raise ConfigError(f"{above}{shortened(key)}: no method of the command has this parameter: {known}")
        if without:
            notes.append(f"{key} is left out for {', '.join(without)}: no such parameter")
    return notes


def used(label: str, experiment: str, given: dict[str, str]) -> tuple[Point, list[UnusedKeyError]]:
    """Return a run as :func:`point` without the keys that do nothing in it, and why each is left out.

    They are removed from ``given``; other runs of the grid may need them.

    Raises:
        ConfigError: If a key or value is not allowed.
    """
    left_out: list[UnusedKeyError] = []
    while True:
        try:
            return point(label, experiment, given), left_out
        except UnusedKeyError as error:
            typed = next((key for key in given if key.replace("-", "_") == error.key), None)
            if typed is None:  # it is in the experiment, or in set=
                raise
            label = label.replace(f" {typed}={given.pop(typed)}", "", 1)
            left_out.append(error)


def noted(unused: Sequence[UnusedKeyError], runs: int) -> list[str]:
    """Return notes on keys that do nothing in some of so many runs.

    Raises:
        UnusedKeyError: If one does nothing in all.
    """
    times = Counter(error.key for error in unused)
    for error in unused:
        if times[error.key] == runs:
            raise error
    return list(dict.fromkeys(error.note for error in unused))


def point(label: str, experiment: str, given: Mapping[str, str]) -> Point:
    """Return a run of an experiment with one value of each key.

    Raises:
        ConfigError: If a key or value is not allowed.
    """
    from fedshift.run.launch import runner  # torch and Flower: tables use the rest of this module without them

    keys = [f"{key}={value}" for key, value in given.items() if key != "output-dir"]
    arguments = [experiment, *keys] if experiment else keys
    flat, launch = parse_arguments(arguments)
    worker_count.check(launch)
    config = configuration.resolve(flat)
    nodes = runner.num_nodes(config, launch.get("nodes"))
    return Point(label, tuple(arguments), flat, launch, config, nodes, identity(config, nodes))
