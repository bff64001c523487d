"""Lists a configuration by dotted key, as it is or as requested through a recipe's parameters."""

from collections.abc import Mapping
from typing import Any

from fedshift_app.config import registry
from fedshift_app.config.layers import NAMED
from fedshift_app.config.recipes import targets_of, targets_with_values
from fedshift_core.features import ours
from fedshift_core.registry import Method, name_and_params

NONE = registry.NONE
#: Keys that may differ, as they decide no number of a successful round.
FREE = (
    "dataset.data_dir",
    "dataset.download",
    "dataset.hub",
    "dataset.classes_stated",
    "federation.log_received",
    "federation.node_timeout",
    "federation.round_timeout",
    "model.weights",
    "tracking",
    "checkpoint_seconds",
    "keep_rounds",
    *(feature.key for feature in ours() if feature.shows),
)
#: The settings that decide what a method computes and sends, besides its images and its optimiser.
COST_SECTIONS = ("method.", "modules", "adapt.", "aggregation.", "server.", "model.")
#: Further ones, on which the costs of a step, of a local round, or both depend.
BATCH_SIZE, EPOCHS, SIZE = "train.batch_size", "train.epochs", "dataset.size"


def flat(section: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return all values by dotted key. A list of modules or features becomes names, and parameters by name and key."""
    values: dict[str, Any] = {}
    for key, value in section.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{above}{key}.")
        elif key in NAMED and not above:
            values[key] = ",".join(entry["name"] for entry in value) or NONE
            for name, inner in map(name_and_params, value):
                values |= flat(inner, f"{key}.{name}.")
        else:
            values[f"{above}{key}"] = value
    return values


def as_requested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted key in terms of their method's parameters.

    A parameter ``method.KEY`` replaces the keys that it stands for. The method's own modules and adaptation become none
    if no parameter covers them. Settings of another adaptation than the method's own are no parameter of the method.

    Args:
        settings: All settings of a run (:func:`flat`).
    """
    method = registry.known(str(settings["method.name"]))
    if method is None:  # its file or package is not here, so the meaning of its parameters is unknown
        return dict(settings)
    requested = dict(settings)
    for key in method.parameters:
        _use_parameter(requested, settings, method, key)
    own = {key: name for key, name in _own_names(method).items() if requested.get(key) == name}
    return requested | dict.fromkeys(own, NONE)


def as_of(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return settings in terms of another method's parameters, such as a recipe's next to its base method.

    Args:
        settings: All settings of a run as requested (:func:`as_requested`).
        name: The method whose parameters are used; ``method.name`` stays that of the run.
    """
    method = registry.known(str(settings["method.name"]))
    if method is None:
        return dict(settings)
    requested = dict(settings)
    for key in method.parameters:
        if f"method.{key}" in requested:
            targets = dict(targets_with_values(method, key, requested.pop(f"method.{key}")))
            requested |= {dotted: value for dotted, value in targets.items() if dotted != f"method.{key}"}
    return as_requested(requested | {"method.name": name}) | {"method.name": settings["method.name"]}


def _use_parameter(requested: dict[str, Any], settings: Mapping[str, Any], method: Method, key: str) -> None:
    """Replace the keys that a parameter stands for by the parameter, if their values agree."""
    for dotted, meanings in targets_of(method, key):
        if dotted.startswith("method.") or dotted not in settings:
            continue
        if dotted.startswith("adapt.") and settings["adapt.name"] not in (NONE, _own_names(method).get("adapt.name")):
            continue
        values = [settings[dotted]]
        if meanings:  # several values may mean the same
            values = [value for value, meant in meanings.items() if meant == settings[dotted]]
        if values and requested.setdefault(f"method.{key}", values[-1]) in values:
            del requested[dotted]


def _own_names(method: Method) -> dict[str, str]:
    """Return the ``modules`` and ``adapt.name`` that the method's own file sets."""
    modules, adapt = method.defaults.get("modules", ()), method.defaults.get("adapt", {})
    names = [entry if isinstance(entry, str) else entry["name"] for entry in modules]
    return ({"modules": ",".join(names)} if names else {}) | ({"adapt.name": adapt["name"]} if adapt else {})
