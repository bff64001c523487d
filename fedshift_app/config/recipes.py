"""Recipes: methods that are a configuration of another method, and the keys that their parameters stand for."""

from collections.abc import Iterator, Mapping
from typing import Any

from fedshift_app.config.sections import RunConfig
from fedshift_clients.models.catalog import NETWORKS
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, shortened
from fedshift_core.registry import Method
from fedshift_core.spelling import meant

#: What a key has that a run does not have.
NOTHING = object()


def spread(method: Method, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a method's own parameters, and the keys of other sections that its other parameters stand for.

    Args:
        method: The method; its ``parameters`` map parameters to keys.
        given: Parameters by name.

    Returns:
        The method's own parameters, and sections (modules by name).

    Raises:
        ConfigError: If a value has no meaning.
    """
    own: dict[str, Any] = {}
    sections: dict[str, Any] = {}
    for key, value in given.items():
        for dotted, value_of_key in targets_with_values(method, key, value):
            target = sections
            section, *inner, last = dotted.split(".")
            if section == "method":
                own[last] = value_of_key
                continue
            for part in (section, *inner):
                target = target.setdefault(part, {})
            target[last] = value_of_key
    return own, sections


def targets_with_values(method: Method, key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys that a parameter stands for, each with its value."""
    for target in targets_of(method, key):
        if isinstance(target, str):
            yield target, value
            continue
        if isinstance(value, list | dict) or value not in target["values"]:
            known = [str(allowed) for allowed in target["values"]]
            raise ConfigError(
                f"method.{key}: {as_found(value)}; allowed are {', '.join(known)}{meant(value, known)}",
                keys=(("method", key),),
            )
        yield target["key"], target["values"][value]


def targets_of(method: Method, key: str) -> tuple[Any, ...]:
    """Return the dotted keys that a parameter stands for, or mappings of key and meaning of each value."""
    stands_for = method.parameters.get(key, f"method.{key}")
    return stands_for if isinstance(stands_for, tuple) else (stands_for,)


def parameter_of_key(method: Method) -> dict[str, str]:
    """Return the parameter ``method.KEY`` of a recipe that stands for each dotted key of other sections."""
    return {
        target if isinstance(target, str) else target["key"]: f"method.{key}"
        for key in method.parameters
        for target in targets_of(method, key)
    }


def moved(method: Method, key: str) -> bool:
    """Return whether a parameter stands only for keys of other sections."""
    own = (isinstance(target, str) and target.startswith("method.") for target in targets_of(method, key))
    return key in method.parameters and not any(own)


def patched(sections: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return sections with the keys of a patch merged in at any depth."""
    merged = dict(sections)
    for key, value in patch.items():
        below = merged.get(key)
        merged[key] = patched(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def value_of(config: RunConfig, dotted: str) -> Any:
    """Return the value of a key at any depth, of modules by name; ``NOTHING`` if the run has no such key."""
    value: Any = config
    for part in dotted.split("."):
        if isinstance(value, Mapping):
            value = value.get(part, NOTHING)
        elif isinstance(value, tuple):  # modules
            value = next((entry for entry in value if entry["name"] == part), NOTHING)
        else:
            value = getattr(value, part, NOTHING)
    return value


def check_needs(config: RunConfig, method: Method) -> None:
    """Refuse a configuration that changes the keys that a recipe needs.

    Raises:
        ConfigError: With the key, the value found and the value needed.
    """
    for key, needed in method.needs.items():
        allowed = needed if isinstance(needed, tuple) else (needed,)
        if key == "network":
            _check_network(config, method)
        elif key == "modules":
            names = [entry["name"] for entry in config.modules]
            for name in allowed:
                if name not in names:
                    listed = shortened(", ".join(names)) or "none"
                    raise ConfigError(f"method {method.name} needs the modules {name}, found modules={listed}")
        else:
            value = value_of(config, key)
            if value not in allowed:
                raise ConfigError(
                    f"method {method.name} needs {key}={' or '.join(map(str, allowed))}, found {shortened(str(value))}"
                )


def _check_network(config: RunConfig, method: Method) -> None:
    for name in (config.model.name, *config.model.per_node):
        if not NETWORKS[name].batchnorm:
            able = ", ".join(network.name for network in NETWORKS.values() if network.batchnorm)
            raise ConfigError(
                f"method {method.name} needs a network with BatchNorm, found model.name={name}; there are {able}"
            )
