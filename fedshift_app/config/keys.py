"""A configuration by dotted key: as it is, and as asked for, where a recipe's parameters stand for other keys."""

from collections.abc import Mapping
from typing import Any

from fedshift_app.config import registry
from fedshift_app.config.layers import NAMED
from fedshift_app.config.recipes import targets_of
from fedshift_core.registry import Method

NONE = registry.NONE
#: The settings that make what a method computes and sends: of a run, beside its images and its optimiser.
COST_SECTIONS = ("method.", "modules", "adapt.", "aggregation.", "server.", "model.")


def flat(section: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return all values by their dotted key; of a list of modules the names, and the parameters by name and key."""
    found: dict[str, Any] = {}
    for key, value in section.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{above}{key}.")
        elif key in NAMED and not above:
            found[key] = ",".join(entry["name"] for entry in value) or NONE
            for entry in value:
                inner = {name: one for name, one in entry.items() if name != "name"}
                found |= flat(inner, f"{key}.{entry['name']}.")
        else:
            found[f"{above}{key}"] = value
    return found


def as_asked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted key as their method's parameters say them.

    What a parameter ``method.KEY`` stands for is told as that parameter; modules and an adaptation that the method
    itself has are told as none, where no parameter tells them. What belongs to another adaptation than the method's own
    is no parameter of the method.

    Args:
        settings: All settings of a run (:func:`flat`).
    """
    method = registry.known(str(settings["method.name"]))
    if method is None:  # its own file or package is not here: nobody knows what its parameters stand for
        return dict(settings)
    found = dict(settings)
    for key in method.parameters:
        _tell(found, settings, method, key)
    own = {key: name for key, name in _own_names(method).items() if found.get(key) == name}
    return found | dict.fromkeys(own, NONE)


def as_of(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return settings as the parameters of another method say them, such as those of a recipe beside its model.

    Args:
        settings: All settings of a run as asked for (:func:`as_asked`).
        name: The method in whose parameters they are told; ``method.name`` stays that of the run.
    """
    method = registry.known(str(settings["method.name"]))
    if method is None:
        return dict(settings)
    found = dict(settings)
    for key in method.parameters:
        if f"method.{key}" not in found:
            continue
        told = found[f"method.{key}"]
        for target in targets_of(method, key):
            if isinstance(target, Mapping):
                found[target["key"]] = target["values"][told]
            elif not target.startswith("method."):
                found[target] = told
        found = {dotted: value for dotted, value in found.items() if dotted != f"method.{key}"}
    return as_asked(found | {"method.name": name}) | {"method.name": settings["method.name"]}


def _tell(found: dict[str, Any], settings: Mapping[str, Any], method: Method, key: str) -> None:
    """Put one parameter in the place of the keys that it stands for, if their values are its."""
    for target in targets_of(method, key):
        dotted = target if isinstance(target, str) else target["key"]
        if dotted.startswith("method.") or dotted not in settings:
            continue
        if dotted.startswith("adapt.") and settings["adapt.name"] not in (NONE, _own_names(method).get("adapt.name")):
            continue
        if isinstance(target, Mapping):
            meant = [given for given, value in target["values"].items() if value == settings[dotted]]
        else:
            meant = [settings[dotted]]
        if meant and found.setdefault(f"method.{key}", meant[-1]) in meant:  # several may mean the same
            del found[dotted]


def _own_names(method: Method) -> dict[str, str]:
    """Return what the method's own file puts under ``modules`` and ``adapt.name``."""
    modules, adapt = method.defaults.get("modules", ()), method.defaults.get("adapt", {})
    names = [entry if isinstance(entry, str) else entry["name"] for entry in modules]
    return ({"modules": ",".join(names)} if names else {}) | ({"adapt.name": adapt["name"]} if adapt else {})
