"""Recipes: methods that are a configuration of another method, and the keys that their parameters stand for."""

from collections.abc import Iterator, Mapping
from typing import Any

from fedshift_app.config.layers import Layer, split_key
from fedshift_app.config.options_of_a_kind import UnusedKeyError
from fedshift_app.config.registry import NONE
from fedshift_app.config.sections import RunConfig
from fedshift_clients.models.catalog import NETWORKS
from fedshift_core.errors import ConfigError
from fedshift_core.features import said
from fedshift_core.limits import as_found, shortened
from fedshift_core.registry import Method
from fedshift_core.spelling import meant

#: What a key has that a run does not have.
NOTHING = object()


def stood_for(method: Method, given: Mapping[str, Any]) -> Layer:
    """Return the keys that parameters of a method stand for: its own, and those of other sections.

    Raises:
        ConfigError: If a value has no meaning.
    """
    pairs = [pair for key, value in given.items() for pair in targets_with_values(method, key, value)]
    layer = {split_key(dotted): value for dotted, value in pairs}
    if layer.get(("adapt", "name")) == NONE:
        layer = {key: value for key, value in layer.items() if key[0] != "adapt" or key[1] == "name"}
    return layer


def targets_with_values(method: Method, key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys that a parameter stands for, each with its value."""
    for dotted, meanings in targets_of(method, key):
        if not meanings:
            yield dotted, value
            continue
        if isinstance(value, list | dict) or value not in meanings:
            known = list(map(str, meanings))
            raise ConfigError(
                f"method.{key}: {as_found(value)}; allowed are {', '.join(known)}{meant(value, known)}",
                keys=(("method", key),),
            )
        yield dotted, meanings[value]


def targets_of(method: Method, key: str) -> list[tuple[str, Mapping[Any, Any]]]:
    """Return the dotted keys that a parameter stands for, each with the meanings of its values if they are others."""
    stands_for = method.parameters.get(key, f"method.{key}")
    targets = stands_for if isinstance(stands_for, tuple) else (stands_for,)
    return [(each, {}) if isinstance(each, str) else (each["key"], each["values"]) for each in targets]


def parameter_of_key(method: Method) -> dict[str, str]:
    """Return the parameter ``method.KEY`` of a recipe that stands for each dotted key of other sections."""
    return {dotted: f"method.{key}" for key in method.parameters for dotted, _ in targets_of(method, key)}


def moved(method: Method, key: str) -> bool:
    """Return whether a parameter stands only for keys of other sections."""
    return key in method.parameters and not any(each.startswith("method.") for each, _ in targets_of(method, key))


def value_of(config: RunConfig, dotted: str) -> Any:
    """Return the value of a key at any depth, of modules by name; ``NOTHING`` if the run has no such key."""
    value: Any = config
    for part in dotted.split("."):
        if isinstance(value, tuple):  # modules
            value = {entry["name"]: entry for entry in value}
        value = value.get(part, NOTHING) if isinstance(value, Mapping) else getattr(value, part, NOTHING)
    return value


def check_typed(config: RunConfig, overrides: Mapping[str, Any]) -> None:
    """Refuse parameters of a recipe whose value did not reach the key that they stand for, as another key decides it.

    Args:
        config: The run's configuration.
        overrides: The dotted keys that the user set, with their values.

    Raises:
        UnusedKeyError: With the parameter, and what decides.
    """
    method = config.declared
    for dotted, value in overrides.items():
        section, _, key = dotted.partition(".")
        if section != "method" or not moved(method, key) or value is None:
            continue
        pairs = [(each, wanted, value_of(config, each)) for each, wanted in targets_with_values(method, key, value)]
        if not any(_same(found, wanted) for _, wanted, found in pairs):
            target, wanted, found = pairs[0]
            owner = target.partition(".")[0]
            kind = f"{owner}.name" if owner == "adapt" else owner
            by = said(target, found) if found is not NOTHING else said(kind, value_of(config, kind))
            raise UnusedKeyError(dotted, value, by, f"{said(target, wanted)}, for which it stands")


def _same(found: Any, wanted: Any) -> bool:
    """Tell whether a value that was checked is the one that was typed: 0.1 and "1e-1" are, and sorted stages."""
    if isinstance(found, tuple | list) and isinstance(wanted, tuple | list):
        in_order = len(found) == len(wanted) and all(map(_same, found, wanted))
        return in_order or sorted(map(str, found)) == sorted(map(str, wanted))
    try:
        return bool(found == wanted) or str(found) == str(wanted) or float(found) == float(wanted)
    except (TypeError, ValueError):
        return False


def check_needs(config: RunConfig, method: Method) -> None:
    """Refuse a configuration that changes the keys that a recipe needs.

    Raises:
        ConfigError: With the key, the value found and the value needed.
    """
    names = [entry["name"] for entry in config.modules]
    for key, needed in method.needs.items():
        allowed = needed if isinstance(needed, tuple) else (needed,)
        if key == "features":
            fits, words, found = bool(config.dataset.features), "dataset.features", f"model.name={config.model.name}"
        elif key == "network":
            lacking = [name for name in config.model.names if not NETWORKS[name].batchnorm]
            able = ", ".join(name for name in NETWORKS if NETWORKS[name].batchnorm)
            fits, words, found = (
                not lacking,
                "a network with BatchNorm",
                f"model.name={', '.join(lacking)}; there are {able}",
            )
        elif key == "modules":
            words, found = f"the modules {', '.join(allowed)}", f"modules={', '.join(names) or 'none'}"
            fits = {*allowed} <= {*names}
        else:
            words, found = f"{key}={' or '.join(map(str, allowed))}", shortened(str(value_of(config, key)))
            fits = value_of(config, key) in allowed
        if not fits:
            raise ConfigError(f"method {method.name} needs {words}, found {found}")
