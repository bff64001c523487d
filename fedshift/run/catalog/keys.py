"""``fedshift keys``: every key of the configuration with type, default, range and description."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel

from fedshift.run.catalog import methods, ranges
from fedshift.run.catalog.ranges import NONE, Parameter
from fedshift.run.columns import columns, wrapped
from fedshift_app.config import dotted_keys, registry
from fedshift_app.config.sections import RunConfig
from fedshift_clients.adapt.catalog import ADAPTATIONS
from fedshift_clients.modules.catalog import MODULES
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import OURS
from fedshift_core.limits import as_found

HEAD = ("key", "type", "default", "range", "description")
TOP = "run"  # heading of the keys that stand in no section
INTRODUCTION = """\
# Configuration keys

This page is generated: `fedshift keys --markdown` prints it. `fedshift keys train` prints one section, and
`fedshift methods NAME` one method.

Type a key as `fedshift run EXPERIMENT train.lr=0.005`, or write it in an experiment's file as `train: {lr: 0.005}`.
A default is that of the key itself. The files of data sets, methods and experiments may set another value; `--dry-run`
prints what a run has. A key without a default (`-`) is set by one of these files. `null` stands for no value.

The parameters of the methods are on [a page of their own](methods.md)."""


@dataclass(frozen=True)
class Group:
    """Keys that stand together: of a section, an adaptation, modules or a method.

    Attributes:
        title: Its heading.
        keys: In the order of the models.
    """

    title: str
    keys: tuple[Parameter, ...]


def text(begun: str) -> str:
    """Return the keys whose dotted name begins with ``begun`` as lines for a terminal; all where it is empty.

    Raises:
        ConfigError: If there is no such key.
    """
    found = [(group.title, key) for group in groups() for key in group.keys if f"{key.key}.".startswith(begun)]
    if not found:
        known = [key.key for group in groups() for key in group.keys]
        raise ConfigError(f"keys: no key begins with {as_found(begun)}{dotted_keys.meant(begun, known)}")
    head, *rows = columns([HEAD[:-1], *(_cells(key)[:-1] for _, key in found)], indent="")
    lines, last = [head], ""
    for (title, key), row in zip(found, rows, strict=True):
        if title != last and "=" in title:  # keys of a section name it; those of a method do not
            lines += ["", title]
        lines += [row, *wrapped(key.description)]
        last = title
    return "\n".join(lines)


def markdown() -> str:
    """Return the page docs/reference/keys.md."""
    parts = [INTRODUCTION]
    for group in (*_sections(), *_named()):
        parts.append("\n".join([f"## {group.title}", "", *_table(group.keys)]))
    return "\n\n".join(parts) + "\n"


def groups() -> list[Group]:
    """Return all keys: of the sections, of our adaptations and modules, and of our methods, recipes too."""
    groups = [*_sections(), *_named()]
    ours = (name for name in registry.METHODS if registry.METHODS.origin(name) == OURS)
    groups += [Group(f"method={name}", _of_method(name)) for name in ours]
    return [group for group in groups if group.keys]


def _named() -> Iterator[Group]:
    """Yield the keys of our adaptations and modules that have any."""
    for name in ADAPTATIONS:
        if ADAPTATIONS.origin(name) == OURS and (own := _of_model(ranges.adaptation_model(name), "adapt.")):
            yield Group(f"adapt.name={name}", own)
    for name in MODULES:
        if MODULES.origin(name) == OURS and (own := _of_model(ranges.modules_model(name), f"modules.{name}.")):
            yield Group(f"modules={name}", own)


def _sections() -> Iterator[Group]:
    """Yield the keys that are always there, by section; first those in none."""
    fields = RunConfig.model_fields
    sections = {
        name: model
        for name, field in fields.items()
        if isinstance(model := field.annotation, type) and issubclass(model, BaseModel)
    }
    own = tuple(ranges.described(RunConfig, name) for name in fields if name not in (*sections, "method", "adapt"))
    named = tuple(
        Parameter(f"{name}.name", default, "text", NONE, fields[name].description or "")
        for name, default in (("method", "fedavg"), ("adapt", registry.NONE))
    )
    yield Group(TOP, (*own, *named))
    for name, model in sections.items():
        yield Group(name, _of_model(model, f"{name}."))


def _of_method(name: str) -> tuple[Parameter, ...]:
    """Return the parameters of a method with the defaults of its file, also those that a recipe has for other keys."""
    return tuple(replace(own, key=f"method.{own.key}") for own in methods.parameters(registry.get(name)))


def _of_model(model: type[BaseModel], above: str) -> tuple[Parameter, ...]:
    return tuple(replace(ranges.described(model, name), key=above + name) for name in model.model_fields)


def _cells(key: Parameter) -> tuple[str, ...]:
    """Return the columns of a table."""
    return key.key, key.kind, key.default, key.bounds, key.description


def _table(keys: Sequence[Parameter]) -> list[str]:
    rows = [HEAD, ("---",) * len(HEAD)]
    rows += [(f"`{key.key}`", key.kind, f"`{key.default}`", key.bounds, key.description) for key in keys]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
