"""``fedshift keys``: every key of the configuration with type, default, range and description."""

from collections.abc import Iterator
from typing import Any

from fedshift.run.catalog import methods
from fedshift.run.catalog.ranges import NONE, Parameter, adaptation_model, described, modules_model
from fedshift.run.columns import columns, wrapped
from fedshift_app.config import dotted_keys, registry
from fedshift_app.config.sections import MODELS, RunConfig
from fedshift_clients.adapt.catalog import ADAPTATIONS
from fedshift_clients.modules.catalog import MODULES
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import OURS, Registry
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


def text(begun: str) -> str:
    """Return the keys whose dotted name begins with ``begun`` as lines for a terminal; all where it is empty.

    Raises:
        ConfigError: If there is no such key.
    """
    known = groups()
    found = [(title, key) for title, keys in known.items() for key in keys if f"{key.key}.".startswith(begun)]
    if not found:
        names = [key.key for keys in known.values() for key in keys]
        raise ConfigError(f"keys: no key begins with {as_found(begun)}{dotted_keys.meant(begun, names)}")
    head, *rows = columns([HEAD[:-1], *(key[:4] for _, key in found)], indent="")
    lines, last = [head], ""
    for (title, key), row in zip(found, rows, strict=True):
        if title != last and "=" in title:  # keys of a section name it; those of a method do not
            lines += ["", title]
        lines += [row, *wrapped(key.description)]
        last = title
    return "\n".join(lines)


def markdown() -> str:
    """Return the page of all keys."""
    parts = [INTRODUCTION]
    for title, keys in _groups(of_methods=False):
        rows = ((f"`{k.key}`", k.kind, f"`{k.default}`", *k[3:5]) for k in keys)
        parts.append(f"## {title}\n\n{registry.table(HEAD, rows)}")
    return "\n\n".join(parts) + "\n"


def groups() -> dict[str, list[Parameter]]:
    """Return all keys by their heading: of the sections, of our adaptations and modules, and of our methods."""
    return dict(_groups(of_methods=True))


def _groups(of_methods: bool) -> Iterator[tuple[str, list[Parameter]]]:
    fields = RunConfig.model_fields
    named = [
        Parameter(f"{name}.name", "text", default, NONE, fields[name].description or "")
        for name, default in (("method", "fedavg"), ("adapt", registry.NONE))
    ]
    yield TOP, [*(described(RunConfig, key) for key in fields if key not in (*MODELS, "method", "adapt")), *named]
    models = [(name, f"{name}.", model) for name, model in MODELS.items()]
    models += [(f"adapt.name={name}", "adapt.", adaptation_model(name)) for name in _ours(ADAPTATIONS)]
    models += [(f"modules={name}", f"modules.{name}.", modules_model(name)) for name in _ours(MODULES)]
    for title, above, model in models:
        if model.model_fields:
            yield title, [described(model, key, above) for key in model.model_fields]
    for name in _ours(registry.METHODS) if of_methods else ():  # with the defaults of their files; recipes, too
        if own := methods.parameters(registry.get(name)):
            yield f"method={name}", [parameter._replace(key=f"method.{parameter.key}") for parameter in own]


def _ours(kind: Registry[Any]) -> Iterator[str]:
    return (name for name in kind if kind.origin(name) == OURS)
