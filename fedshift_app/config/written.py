"""Reads a run's configuration from its folder, where the plugins and packages of the run may be missing.

Results need no code, as the scores are in the folder. Without a plugin or package, the settings stay as the run wrote
them, with every default.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from fedshift_app.config import plugins, registry, validating
from fedshift_app.config.error_messages import explained
from fedshift_app.config.layers import NAMED, listed
from fedshift_app.config.sections import RunConfig
from fedshift_clients.models.catalog import NETWORKS
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import Registry
from fedshift_datasets import catalog


def read_back(layers: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of a finished run, checked as far as its code is installed here.

    Args:
        layers: The sections under ``resolved`` of ``config.yaml``.

    Raises:
        ConfigError: As ``validating.validate``, for checks that need no code.
    """
    layers = validating.with_former_values(layers)
    given = () if _needs_files(layers) else tuple(layers.get("plugins") or ())
    try:
        if given:  # none of its files defines anything of it
            config = validating.validate(dict(layers) | {"plugins": ()}, finished=True)
            return config.model_copy(update={"plugins": given})
        return validating.validate(dict(layers), finished=True)
    except ConfigError as error:
        if lacking(layers) is None:
            raise
        # Without a section of the method nothing is known.
        if not isinstance(layers.get("method"), Mapping):
            raise error from None
    sections = validating.upgraded(layers)
    for key in NAMED:
        sections[key] = listed(sections.get(key) or (), key)
    try:
        config = RunConfig.model_validate(sections)
        config.allocation.check(config.dataset.domains)
    except ValidationError as error:
        raise explained(error) from None
    return config


def lacking(layers: Mapping[str, Any]) -> ConfigError | None:
    """Return an error with its remedy if code of a run is missing here; otherwise None.

    Args:
        layers: The sections of the run.
    """
    if layers.get("plugins") and not _needs_files(layers):
        return None
    try:
        plugins.allow(layers.get("plugins") or ())
        for kind, name in _named(layers):
            kind[name]
    except ConfigError as error:
        return error
    return None


def _needs_files(layers: Mapping[str, Any]) -> bool:
    """Tell whether the Python files of a run define a name in it, which nothing else here does."""
    files = layers.get("plugins") or ()
    return bool(files) and any(name not in kind or kind.origin(name) in files for kind, name in _named(layers))


def _named(layers: Mapping[str, Any]) -> Iterator[tuple[Registry[Any], str]]:
    """Yield the names in a configuration that a package or a file may define, each with its registry."""
    sections = {key: value if isinstance(value := layers.get(key), Mapping) else {} for key in _SECTIONS}
    networks = sections["model"].get("per_node")
    names: list[tuple[Registry[Any], Any]] = [
        (registry.METHODS, sections["method"].get("name")),
        (catalog.DATASETS, sections["dataset"].get("of") or sections["dataset"].get("name")),
        (registry.ADAPTATIONS, sections["adapt"].get("name")),
        (NETWORKS, sections["model"].get("name")),
        *((NETWORKS, name) for name in (networks if isinstance(networks, list | tuple) else ())),
        *((registry.MODULES, name) for name in _entries(layers.get("modules"))),
        *((registry.FEATURES, name) for name in _entries(layers.get("features"))),
    ]
    yield from ((kind, name) for kind, name in names if isinstance(name, str) and name not in ("", registry.NONE))


_SECTIONS = ("method", "dataset", "adapt", "model")


def _entries(section: Any) -> list[Any]:
    entries = section if isinstance(section, list | tuple) else ()
    return [entry.get("name") if isinstance(entry, Mapping) else entry for entry in entries]
