"""Merges the layers of a configuration, and sets dotted keys in them."""

import shlex
from collections.abc import Mapping
from typing import Any

from fedshift_app.config import dotted_keys, options_of_a_kind, registry
from fedshift_app.config.sections import RunConfig
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found
from fedshift_core.yaml_files import BY_NAME, MOST_BYTES, NAMES, parse

#: Name of ``model.per_node`` in an experiment.
MODEL_PER_NODE = "model_per_node"
MOST_KEY = 100  # characters of a dotted key
MOST_PARTS = 5  # of a dotted key
#: Sections that are lists of things with a name and parameters, each with an entry as a message shows it.
NAMED = {"modules": "[f2dc] or [{name: f2dc, tau: 0.1}]", "features": "[NAME] or [{name: NAME, KEY: VALUE}]"}


def parse_set(text: str) -> dict[str, Any]:
    """Return dotted overrides such as ``"method.tau=0.07 train.lr=0.005"`` by key; values are YAML.

    Raises:
        ConfigError: If a part is not ``section.key=value``.
    """
    overrides: dict[str, Any] = {}
    if len(text) > MOST_BYTES:
        raise ConfigError(f"set: expected at most {MOST_BYTES} characters, found {len(text)}")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"set: {error} in {as_found(text)}") from None
    for part in words:
        dotted, sep, value = part.partition("=")
        if not sep or not dotted:
            raise ConfigError(f"set: {as_found(part)} is not of the form section.key=value, for example train.lr=0.005")
        parts = split_key(dotted)
        if max(map(len, parts)) > MOST_KEY or len(parts) > MOST_PARTS or not dotted.isprintable():
            raise ConfigError(
                f"set: {as_found(dotted)} is not a key; a key has at most {MOST_PARTS} parts and {MOST_KEY} characters"
            )
        key = options_of_a_kind.flat_key(".".join(parts))
        section, _, name = ("model.per_node" if key == MODEL_PER_NODE else key).partition(".")
        given = options_of_a_kind.flat(section, {name: _scalar(value, section, name)})
        overrides |= {f"{section}.{key}" if key else section: value for key, value in given.items()}
    return overrides


def split_key(dotted: str) -> tuple[str, ...]:
    """Return the parts of a typed key; what follows a key that holds a mapping by names is a name, taken as typed."""
    section, *rest = dotted.split(".", 2)
    if len(rest) == 2 and rest[0].replace("-", "_") in BY_NAME.get(section, ()):
        return section, rest[0].replace("-", "_"), rest[1]
    return tuple(dotted.replace("-", "_").split("."))


def _scalar(text: str, section: str, name: str) -> Any:
    key = f"{section}.{name}".rstrip(".")
    try:
        value = parse(text, dotted=key)
    except ValueError as error:
        raise ConfigError(f"set: the value of {key}, {as_found(text)}, is not valid YAML for a key: {error}") from None
    if isinstance(value, str) and name not in NAMES.get(section, ()):  # YAML 1.1 reads 1e-3 as a word
        try:
            return float(value)
        except ValueError:
            return value
    return value


def section_of(layers: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a copy of a section of a YAML file; empty if the section is absent or empty."""
    value = layers.get(key)
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{key}: expected a mapping of keys to values, found {as_found(value)}")
    return dict(value or {})


def modules_by_name(section: Any, key: str = "modules") -> dict[str, dict[str, Any]]:
    """Return the entries of a section of ``NAMED`` by name: a list of names and mappings, one mapping, or a name.

    Args:
        section: Its content.
        key: Its name.

    Raises:
        ConfigError: If it is of another form, or an entry has no name or comes twice.
    """
    entries: list[Any] = list(section) if isinstance(section, list | tuple) else [section]
    if isinstance(section, Mapping) and "name" not in section and all(isinstance(v, Mapping) for v in section.values()):
        entries = [{"name": name} | dict(value) for name, value in section.items()]
    modules: dict[str, dict[str, Any]] = {}
    for entry in entries:
        module = {"name": entry} if isinstance(entry, str) else dict(entry) if isinstance(entry, Mapping) else {}
        name = module.pop("name", None)
        if not isinstance(name, str):
            raise ConfigError(f"{key}: expected a list such as {NAMED[key]}, found {as_found(entry)}")
        if name in modules:
            raise ConfigError(f"{key}: {as_found(name)} comes twice")
        if name != registry.NONE:
            modules[name] = module
    return modules


def listed(section: Any, key: str) -> list[dict[str, Any]]:
    """Return the entries of a section of ``NAMED`` as a list of mappings."""
    return [{"name": name} | params for name, params in modules_by_name(section, key).items()]


def laid_over(key: str, below: Any, above: Any) -> Any:
    """Return a section merged over another: by key, modules by name, another adaptation as a whole."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    if key in NAMED:
        return {**below, **{name: {**below.get(name, {}), **params} for name, params in above.items()}}
    if key == "adapt" and above.get("name", below.get("name")) != below.get("name"):
        return {"name": registry.NONE} if above["name"] == registry.NONE else dict(above)
    return options_of_a_kind.laid_over(key, below, above)


def set_all(layers: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Set dotted keys in the layers, a section or its name before its keys, in whatever order they were typed.

    Raises:
        ConfigError: If there is no such section, or the key is a section.
    """
    for dotted, value in overrides.items():  # first: a kind's own options may be typed before it
        section, _, key = dotted.partition(".")
        if key in options_of_a_kind.kinds(section) and isinstance(layers.get(section), Mapping):
            layers[section] = options_of_a_kind.laid_over(section, layers[section], {key: value})
    for dotted in sorted(overrides, key=lambda key: key.removesuffix(".name").count(".")):
        _set(layers, dotted, overrides[dotted])


def _set(layers: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, key = keys = list(split_key(dotted))
    if keys[0] not in RunConfig.model_fields:
        raise ConfigError(
            f"set: unknown key {as_found(dotted)}; it starts with one of {', '.join(RunConfig.model_fields)}"
            f"{dotted_keys.meant(dotted)}"
        )
    if keys[0] in NAMED:
        layers[keys[0]] = _set_named(keys[0], modules_by_name(layers.get(keys[0], ()), keys[0]), keys[1:], value)
        return
    if dotted == "adapt.name":
        layers["adapt"] = laid_over("adapt", section_of(layers, "adapt"), {"name": value})
        return
    target = layers
    for section in sections:
        inner = target.get(section)
        target[section] = dict(inner) if isinstance(inner, Mapping) else {}
        target = target[section]
    if isinstance(target.get(key), Mapping) and not sections:
        raise ConfigError(
            f"set: {key!r} is a section; set its keys, for example {key}.{next(iter(target[key]), 'name')}="
        )
    target[key] = value


def _set_named(
    section: str, entries: dict[str, dict[str, Any]], keys: list[str], value: Any
) -> dict[str, dict[str, Any]]:
    """Return the entries of a section with its name or ``SECTION.NAME.KEY`` set; of a single entry ``SECTION.KEY``."""
    if not keys or keys == ["name"]:
        return {name: entries.get(name, {}) | params for name, params in modules_by_name(value, section).items()}
    if len(keys) == 1 and len(entries) == 1:
        keys = [*entries, *keys]
    name = {name.replace("-", "_"): name for name in entries}.get(keys[0])  # as keys are read
    if len(keys) != 2 or name is None:
        known = ", ".join(entries) or "none"
        raise ConfigError(
            f"set: {section}.{'.'.join(keys)}: expected {section}.NAME.KEY with a name of the run's {section} "
            f"({known}); {section}={NAMED[section].partition(' ')[0]} adds one"
        )
    return entries | {name: entries[name] | {keys[1]: value}}
