"""The layers of a configuration: values by key, ``("train", "lr")``, each layer over the one before."""

import shlex
from collections.abc import Mapping
from typing import Any

from fedshift_app.config import dotted_keys, options_of_a_kind, registry
from fedshift_app.config.sections import MODELS, RunConfig
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found
from fedshift_core.yaml_files import BY_NAME, NAMES, parse

#: Name of ``model.per_node`` in an experiment.
MODEL_PER_NODE = "model_per_node"
#: Sections that are lists of things with a name and parameters, each with an entry as a message shows it.
NAMED = {"modules": "[f2dc] or [{name: f2dc, tau: 0.1}]", "features": "[NAME] or [{name: NAME, KEY: VALUE}]"}


Layer = dict[tuple[str, ...], Any]
#: Sections of keys; all others hold one value, or are of ``NAMED``.
SECTIONS = {"method", "adapt", *MODELS}


def parse_set(text: str) -> dict[str, Any]:
    """Return dotted overrides such as ``"method.tau=0.07 train.lr=0.005"`` by key; values are YAML.

    Raises:
        ConfigError: If a part is not ``section.key=value``.
    """
    overrides: dict[str, Any] = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"set: {error} in {as_found(text)}") from None
    for part in words:
        dotted, sep, value = part.partition("=")
        if not sep or not dotted:
            raise ConfigError(f"set: {as_found(part)} is not of the form section.key=value, for example train.lr=0.005")
        key = options_of_a_kind.flat_key(".".join(split_key(dotted)))
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


def layer_of(content: Mapping[str, Any]) -> Layer:
    """Return the values of a file's sections by key: lists of ``NAMED`` by name, options next to their kind.

    Raises:
        ConfigError: If a section is of another form.
    """
    layer: Layer = {}
    for key, value in content.items():
        if key in NAMED:
            layer |= _named(key, value)
        elif key in SECTIONS:
            section = options_of_a_kind.flat(key, section_of(content, key))
            layer |= {(key, name): inner for name, inner in section.items()}
        else:
            layer[("model", "per_node") if key.replace("-", "_") == MODEL_PER_NODE else (key,)] = value
    return layer


def _named(section: str, value: Any) -> Layer:
    entries = modules_by_name(value, section)
    layer: Layer = {(section,): tuple(entries)}
    return layer | {(section, name, key): inner for name, given in entries.items() for key, inner in given.items()}


def over(below: Layer, above: Layer) -> Layer:
    """Return a layer over another. A kind or an adaptation that is chosen anew takes the former one's options away."""

    def stays(key: tuple[str, ...]) -> bool:
        if key[0] == "adapt" and ("adapt", "name") in above:
            return bool(above["adapt", "name"] == below.get(("adapt", "name")))
        mark = options_of_a_kind.options(key[0]).get(key[1]) if len(key) == 2 else None
        return mark is None or (key[0], mark.key) not in above or above[key[0], mark.key] in mark.values

    merged = {key: value for key, value in below.items() if stays(key)} | above
    for section in NAMED:
        if names := (*below.get((section,), ()), *above.get((section,), ())):
            merged[section,] = tuple(dict.fromkeys(names))
    return merged


def nested(layer: Layer) -> dict[str, Any]:
    """Return the sections of a layer as a file has them."""
    content: dict[str, Any] = {}
    for key in sorted((key for key in layer if key[0] not in NAMED), key=len):
        target = content
        for part in key[:-1]:
            inner = target.get(part)
            target[part] = target = dict(inner) if isinstance(inner, Mapping) else {}
        target[key[-1]] = layer[key]
    for section in (section for section in NAMED if (section,) in layer):
        content[section] = [
            {"name": name} | {key[2]: value for key, value in layer.items() if key[:2] == (section, name)}
            for name in layer[section,]
        ]
    return content


def with_typed(layer: Layer, overrides: Mapping[str, Any]) -> Layer:
    """Return a layer with dotted keys of a command, whose ``modules`` and ``features`` replace those of the run.

    Raises:
        ConfigError: If there is no such section, or the key is a section.
    """
    typed: Layer = {}
    for dotted, value in overrides.items():
        key = split_key(dotted)
        if key[0] not in RunConfig.model_fields:
            raise ConfigError(
                f"set: unknown key {as_found(dotted)}; it starts with one of {', '.join(RunConfig.model_fields)}"
                f"{dotted_keys.meant(dotted)}"
            )
        if len(key) == 1 and key[0] in SECTIONS:
            first = next((key[1] for key in layer if key[0] == dotted), "name")
            raise ConfigError(f"set: {dotted!r} is a section; set its keys, for example {dotted}.{first}=")
        typed |= _named(key[0], value) if key[0] in NAMED and key[1:] in ((), ("name",)) else {key: value}
    for section, form in NAMED.items():
        names: tuple[str, ...] = (layer | typed).get((section,), ())
        by_typed = {name.replace("-", "_"): name for name in names}  # as keys are read
        for key in [key for key in typed if key[0] == section and key != (section,)]:
            full = (section, *names, key[1]) if len(key) == 2 and len(names) == 1 else key
            name = by_typed.get(full[1].replace("-", "_"))
            if len(full) != 3 or name is None:
                raise ConfigError(
                    f"set: {'.'.join(key)}: expected {section}.NAME.KEY with a name of the run's {section} "
                    f"({', '.join(names) or 'none'}); {section}={form.partition(' ')[0]} adds one"
                )
            typed[section, name, full[2]] = typed.pop(key)
    return over({key: value for key, value in layer.items() if key not in typed}, typed)
