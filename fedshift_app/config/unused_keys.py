"""Refuses keys that a user set and that do nothing in the run, as another key switches off what they belong to.

Keys that were typed are looked at: an experiment may hold settings of what a command then turns off. Two of an
experiment are as well: ``privacy``, which would look like protection, and ``model.bn`` next to its own network.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from fedshift_app.config import recipes
from fedshift_app.config.sections import RunConfig
from fedshift_clients.models.catalog import NETWORKS
from fedshift_core.errors import ConfigError
from fedshift_core.features import said, typed
from fedshift_core.params import For


class UnusedKeyError(ConfigError):
    """A key does nothing in a run.

    Attributes:
        key: The key.
        note: The reason for a note on a run that goes on without it.
    """

    def __init__(self, key: str, value: Any, found: str, needed: str) -> None:
        """Make the error.

        Args:
            key: The key.
            value: Its value.
            found: What switches it off.
            needed: What it needs.
        """
        super().__init__(
            f"{said(key, value)} does nothing with {found}; it needs {needed}", keys=(tuple(key.split(".")),)
        )
        self.key, self.note = key, f"{key} is left out with {found}: it needs {needed}"


def check(config: RunConfig, keys: Collection[str]) -> None:
    """Refuse keys that do nothing in a run.

    Args:
        config: The run's configuration.
        keys: The dotted keys that the user set.

    Raises:
        UnusedKeyError: With the key, and what it needs.
    """
    for key, found, needed in (*_without_another(config, keys), *_without_batchnorm(config, keys)):
        value = recipes.value_of(config, key)
        if value is not None:  # null asks for nothing
            raise UnusedKeyError(key, value, found, needed)


def check_stood_for(config: RunConfig, overrides: Mapping[str, Any]) -> None:
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
        if section != "method" or not recipes.moved(method, key) or value is None:
            continue
        targets = dict(recipes.targets_with_values(method, key, value))
        if any(_same(recipes.value_of(config, target), wanted) for target, wanted in targets.items()):
            continue
        target, wanted = next(iter(targets.items()))
        found = recipes.value_of(config, target)
        by = said(target, found) if found is not recipes.NOTHING else _owner(config, target)
        raise UnusedKeyError(dotted, value, by, f"{said(target, wanted)}, for which it stands")


def _owner(config: RunConfig, dotted: str) -> str:
    """Return the key whose value decides which keys there are next to one that a run does not have."""
    section = dotted.partition(".")[0]
    if section == "modules":
        return f"modules={', '.join(entry['name'] for entry in config.modules) or 'none'}"
    return f"{section}.name={getattr(config, section)['name']}"


def _same(found: Any, wanted: Any) -> bool:
    """Return whether a value that was checked is the one that was typed: 0.1 and "1e-1" are."""
    if isinstance(found, tuple | list) and isinstance(wanted, tuple | list):
        return len(found) == len(wanted) and all(map(_same, found, wanted))
    if isinstance(found, int | float) and not isinstance(found, bool):
        try:
            return float(wanted) == found
        except (TypeError, ValueError):
            return False
    return bool(found == wanted) or str(found) == str(wanted)


def of_privacy(config: RunConfig) -> list[str]:
    """Return the keys of the section ``privacy`` that are not at their defaults."""
    fields = type(config.privacy).model_fields.items()
    return [f"privacy.{key}" for key, field in fields if getattr(config.privacy, key) != field.default]


def needs_of(key: str) -> tuple[str, tuple[str | bool, ...]]:
    """Return the other key that a key needs, and the values of it with which it does something; empty for none."""
    section, _, name = key.partition(".")
    model = RunConfig.model_fields[section].annotation if section in RunConfig.model_fields else None
    field = getattr(model, "model_fields", {}).get(name)
    mark = next((mark for mark in field.metadata if isinstance(mark, For)), None) if field else None
    return (f"{section}.{mark.key}", mark.values) if mark else ("", ())


def _without_another(config: RunConfig, keys: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Yield each key whose other key has another value: the key, what the other is, what it should be."""
    for key in sorted(keys):
        other, values = needs_of(key)
        if other and (found := recipes.value_of(config, other)) not in values:
            yield key, said(other, found), f"{other}={' or '.join(map(typed, values))}"


def _without_batchnorm(config: RunConfig, keys: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Yield ``model.bn`` if no part of the model has BatchNorm."""
    if "model.bn" in keys and config.model.bn != "average" and not _may_have_batchnorm(config):
        names = ", ".join(dict.fromkeys((config.model.name, *config.model.per_node)))
        able = ", ".join(network.name for network in NETWORKS.values() if network.batchnorm)
        yield "model.bn", f"model.name={names}", f"a network with BatchNorm, such as {able}"


def _may_have_batchnorm(config: RunConfig) -> bool:
    """Return whether a part of the model may have BatchNorm: modules, and what a method adds, may have their own."""
    if config.modules or any(NETWORKS[name].batchnorm for name in (config.model.name, *config.model.per_node)):
        return True
    from fedshift_clients.models.networks import Blueprint, batchnorm_names  # torch: only where it is not known yet

    spec = config.dataset.known()
    plan = Blueprint(config.model, len(spec.classes), config.dataset.pixels, seed=0)
    model = config.declared.client_class().build_model(plan, config.params())
    return bool(batchnorm_names(model))
