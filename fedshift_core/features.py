"""Features, which compose with every method: their keys, their names on the wire, and their classes on either side.

A feature declares itself in a room of its own, ``fedshift_app/features/NAME/__init__.py``: ``FEATURE``, and its keys of
the configuration (:class:`FeatureOptions`). The rooms are found by their folder; sections, checks and lists are
made of what they declare. The names on the wire that a feature declares are all that it may send: the
node's check of messages (``fedshift_app.node.requests``), the server's check of replies, and the table of
docs/reference/wire.md are made of them.

A package adds a feature by an entry point of the group ``fedshift.features``; a run uses it where its configuration
names it: ``features=[{name: NAME, KEY: VALUE}]``. FedShift's own have keys of their own, which turn them on.
"""

import functools
import importlib
import json
import math
import pkgutil
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar, Literal, Self, TypeVar, cast

from pydantic import BaseModel, create_model

from fedshift_core.disclosure import CLASS, SUM, Word
from fedshift_core.extensions import Registry
from fedshift_core.limits import as_found
from fedshift_core.params import Params, SectionOfRooms
from fedshift_core.registry import Method, name_and_params
from fedshift_core.shown import History, Shown
from fedshift_core.tasks import CLASSIFICATION, Task
from fedshift_core.wire import names as wire

Sections = TypeVar("Sections", bound=SectionOfRooms)

#: Values of an option with which a feature does nothing.
_OFF: tuple[Any, ...] = (None, False, 0, "none", "off", "fixed", (), (wire.AVERAGED,))
#: What a key may hold, as it says it; of a switch only a feature knows what it means.
TYPES: dict[str, type] = {"int": int, "float": float, "text": str, "bytes": bytes}


@dataclass(frozen=True)
class Key:
    """One name on the wire.

    Attributes:
        name: The name; one that ends in ``/`` or ``=`` is followed by a domain, a layer or a part of the work.
        holds: Type and shape.
        meaning: What it says, for the reference.
        replaces_scores: A message with this key asks for something else than scores.
        images: It is a number of the node's own images, behind the other numbers of its feature.
        word: What it tells of a node's images, where that is another word than its feature's.
    """

    name: str
    holds: str
    meaning: str
    replaces_scores: bool = False
    images: bool = False
    word: Word | None = None

    def refuse(self, value: Any) -> str:
        """Return why a value is not what the key holds, as far as that is one of ``TYPES``; empty if it is."""
        each, listed = self.holds.removeprefix("list of "), self.holds.startswith("list of ")
        parts: list[Any] = value if isinstance(value, list) else [value]
        fits = isinstance(value, list) == listed and all(type(part) is TYPES.get(each) for part in parts)
        fits = fits and all(math.isfinite(part) for part in parts if isinstance(part, float))
        return "" if fits or each not in TYPES else f"it must be {'a list of ' if listed else ''}{each}"

    def fits(self, name: str) -> bool:
        """Tell whether a name on the wire is this one."""
        return name.startswith(self.name) if self.name.endswith(("/", "=")) else name == self.name


class FeatureOptions(SectionOfRooms):
    """Base of the keys of a feature: the one place of their defaults, ranges and descriptions.

    Attributes:
        section: The section of the configuration that has them; empty: they stand in none.
    """

    section: ClassVar[str]

    @classmethod
    def read(cls, config: Any) -> Self:
        """Return the section of a run's configuration that has the keys."""
        return cast(Self, getattr(config, cls.section) if cls.section else config)


#: What a method may be (``fedshift_app.config.needs``).
Fact = Literal[
    "averages",
    "one global model",
    "weights alone",
    "single images",
    "sums",
    "weighs classes",
    "other networks",
    "dense targets",
]


@dataclass(frozen=True)
class Need:
    """A fact that a feature needs of a method.

    Attributes:
        fact: The fact.
        values: The values of the key with which it needs it; empty: all that turn the feature on.
        key: The key; empty: the one that turns the feature on.
    """

    fact: Fact
    values: tuple[Any, ...] = ()
    key: str = ""


@dataclass(frozen=True)
class Case:
    """A run whose features are checked.

    Attributes:
        method: Its method.
        params: The method's parameters.
        settings: The parameters by name, as far as they are given.
        config: The run's configuration, complete but for the method's defaults.
        finished: It is that of a finished run, which chooses nothing any more.
    """

    method: Method
    params: Params
    settings: Mapping[str, Any]
    config: Any
    finished: bool = False


@dataclass(frozen=True)
class Feature:
    """A feature.

    Attributes:
        name: Its name.
        title: What it does, in one line.
        option: The key of the configuration that turns it on.
        server: Its class on the server (``module:Class``), a ``ServerFeature``; empty: none.
        node: Its class on the node, a ``NodeFeature``; empty: none.
        params: Parameters of an entry of the section ``features``, of other packages' alone.
        train: What a message to train may hold in its record ``config``.
        evaluate: Likewise a message to evaluate.
        train_reply: What the reply to a message to train may hold in its record ``metrics``.
        evaluate_reply: Likewise the reply to a message to evaluate.
        introduction: Likewise what a node says of itself before the first round.
        query: What a question of the feature may hold in its record ``config``.
        query_reply: Likewise the answer to it.
        records: Records of its own, in either direction.
        tells: What the numbers depend on of a node's images; empty: on nothing but their number.
        word: What its numbers and arrays tell of a node's images (``fedshift_core.disclosure``); None: nothing.
        shows: It decides no number of a run, which may go on with it or without.
        place: Its place among FedShift's own in a round, from the outermost; other packages' come after these.
        options: Its keys of the configuration; FedShift's own alone.
        needs: What it needs the method to be.
        hides: It hides what a node tells: in which form no other feature of the run may send such things.
        compares: What it does with the replies of single nodes, with a verb; empty: nothing.
        completed: Returns a configuration with what follows from its keys.
        rules: Returns why its keys do not go with the rest of a run, be it on or off, beginning with a key; empty if
            they do.
        rounds_key: The key whose value, if there is one, goes by the number of rounds of the run where it is on.
        show: Its hook of what is seen of it (``module:function``, ``fedshift_core.shown``); empty: nothing.
        section: The model of what it has in ``results.json`` of one round alone, and in files; empty: nothing.
        network: Refuses a network of a run (``module:function(config, model)``); empty: nothing.
        task: What others ask of a task; None: it is none.
    """

    name: str
    title: str
    option: str
    server: str | type[Any] = ""
    node: str | type[Any] = ""
    params: type[Params] = Params
    train: tuple[Key, ...] = ()
    evaluate: tuple[Key, ...] = ()
    train_reply: tuple[Key, ...] = ()
    evaluate_reply: tuple[Key, ...] = ()
    introduction: tuple[Key, ...] = ()
    query: tuple[Key, ...] = ()
    query_reply: tuple[Key, ...] = ()
    records: tuple[Key, ...] = ()
    tells: str = ""
    word: Word | None = None
    shows: bool = False
    place: int = 0
    options: type[FeatureOptions] | None = None
    needs: tuple[Need, ...] = ()
    hides: str = ""
    compares: str = ""
    completed: Callable[[Any], Any] | None = None
    rules: Callable[[Case], str] | None = None
    rounds_key: str = ""
    show: str | Callable[[History], Shown] = ""
    section: str | type[BaseModel] = ""
    network: str = ""
    task: Task | None = None

    @property
    def key(self) -> str:
        """The key of the configuration that turns it on."""
        return self.option.partition("=")[0]

    def setting(self, config: Any, key: str = "") -> str:
        """Return the key that turns it on, or another one, with its value in a run's configuration."""
        key = key or self.key
        return f"features={self.name}" if key in ("", "features") else said(key, value_of(config, key))

    @property
    def file(self) -> str:
        """The key of its section in ``results.json``, with which its files begin."""
        return self.name.replace("-", "_")

    def is_on(self, config: Any) -> bool:
        """Tell whether a run's configuration turns it on; other packages' are on where it names them."""
        _, _, wanted = self.option.partition("=")
        value = value_of(config, self.key) if self.key else True
        return str(value).lower() == wanted if wanted else is_set(value)


def is_set(value: Any) -> bool:
    """Tell whether a feature does something with this value of its option."""
    return value not in _OFF


def value_of(config: Any, key: str) -> Any:
    """Return the value of a dotted key of a configuration."""
    return functools.reduce(getattr, key.split("."), config)


def typed(value: Any) -> str:
    """Return a value as it is typed."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else as_found(list(value) if isinstance(value, tuple) else value)


def said(key: str, value: Any) -> str:
    """Return a key with its value, as it is typed."""
    return f"{key}={typed(value)}"


#: The messages whose names a feature declares.
KINDS = ("train", "evaluate", "train_reply", "evaluate_reply", "introduction", "query", "query_reply", "records")


def shared_name(features: Iterable[Feature]) -> str:
    """Return a name that two features declare for the same kind of message; empty if there is none."""
    declared = tuple(features)
    pairs = (combinations([key for each in declared for key in getattr(each, kind)], 2) for kind in KINDS)
    return next((b.name for each in pairs for a, b in each if a.fits(b.name) or b.fits(a.name)), "")


def _keys(*names: str, word: Word | None = None) -> tuple[Key, ...]:
    return tuple(Key(name, "", "", word=word) for name in names)


_WORK = (
    wire.RUN,
    wire.ENGINE,
    wire.RUN_ID,
    wire.KEPT_IN,
    wire.RESUMED_AFTER,
    wire.CHOSEN,
    wire.MEMORY_ROUND,
    wire.START_DIGEST,
    wire.SERVER_ROUND,
    wire.NODE_INDEX,
    wire.SCALAR,
)
_DONE = _keys(wire.NUM_EXAMPLES, word=SUM) + _keys(wire.KEPT, wire.STARTED_ANEW, wire.WITHHELD)
#: The names that messages have without any feature.
CORE = Feature(
    "core",
    "What every message has",
    "",
    train=_keys(*_WORK),
    evaluate=_keys(*_WORK, wire.DOMAINS, wire.DRAWN, wire.STARTS, wire.STOPS),
    train_reply=_DONE + _keys(wire.LOSS, wire.LOSS_TERM, word=SUM),
    evaluate_reply=_DONE + _keys(wire.CORRECT, wire.COUNT, wire.LOSS_SUM, wire.OTHER_CORRECT, word=SUM),
    introduction=_keys(
        wire.DOMAIN,
        wire.PARTITION_ID,
        wire.NUM_PARTITIONS,
        wire.SHARED_TEST,
        wire.FASTEST,
        wire.WITHHELD,
    )
    + _keys(wire.NUM_TEST, wire.UNHELD_TEST, wire.HELD_TEST, word=SUM)
    + _keys(wire.CLASS_COUNTS, word=CLASS),
    query=_keys(*_WORK),
    records=_keys(wire.ARRAYS, wire.KNOWLEDGE, wire.CONFIG, wire.METRICS, wire.START),
)

#: The packages of the rooms, by name: the ground floor imports nothing from above.
ROOMS = ("fedshift_app.features", "fedshift_app.tasks")


@functools.cache
def ours() -> tuple[Feature, ...]:
    """Return FedShift's own, one of each room, in the order in which a round passes them."""
    found = [(above, room) for above in ROOMS for room in pkgutil.iter_modules(importlib.import_module(above).__path__)]
    rooms = [importlib.import_module(f"{above}.{room.name}") for above, room in found if room.ispkg]
    return tuple(sorted((room.FEATURE for room in rooms), key=lambda feature: feature.place))


def task_of(name: str) -> Task:
    """Return the task of a name, as ``task`` of a configuration has it."""
    return next((room.task for room in ours() if room.task and room.name == name), CLASSIFICATION)


def with_rooms(section: str) -> Callable[[type[Sections]], type[Sections]]:
    """Return what makes of a section's own keys the section: with those of the features that have keys in it."""

    def assembled(own: type[Sections]) -> type[Sections]:
        rooms = [feature.options for feature in ours() if feature.options and feature.options.section == section]
        bases: Any = (*reversed(rooms), own)  # fields come in the order of the last base first
        names: Any = {"__base__": bases, "__module__": own.__module__, "__doc__": own.__doc__}
        return cast(type[Sections], create_model(own.__name__, **names))

    return assembled


class _Rooms(UserDict[str, Feature]):
    """FedShift's own by name; the rooms are looked at when the first is asked for."""

    def __init__(self) -> None:
        """Hold nothing yet."""

    @functools.cached_property
    def data(self) -> dict[str, Feature]:  # type: ignore[override]
        """The features."""
        return {feature.name: feature for feature in ours()}


FEATURES: Registry[Feature] = Registry("feature", "fedshift.features", lambda: Feature, _Rooms())


def of_run(entries: Iterable[Mapping[str, Any]]) -> list[tuple[Feature, Params]]:
    """Return FedShift's features, then those that a run's section ``features`` names, each with its parameters."""
    others = [(FEATURES[name], given) for name, given in map(name_and_params, entries)]
    return [(feature, feature.params.model_validate(given)) for feature, given in [*((f, {}) for f in ours()), *others]]


def on_in(config: Any) -> list[tuple[Feature, Params]]:
    """Return the features that a run's configuration turns on, each with its parameters."""
    return [(feature, params) for feature, params in of_run(config.features) if feature.is_on(config)]
