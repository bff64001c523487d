"""A run's configuration as its folder has it, read where the code that the run was made with need not be.

Results need no code: what the nodes scored is in the folder. A plugin that is not run here, a package that is not
installed, leaves the settings as the run wrote them, with every default in them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from clients.models.catalog import NETWORKS
from datasets import catalog
from fedshift_app.config import plugins, registry, resolving
from fedshift_app.config.error_messages import explained
from fedshift_app.config.layers import NAMED, listed
from fedshift_app.config.sections import RunConfig
from fedshift_core.errors import ConfigError


def read_back(layers: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of a run that was made, checked as far as the code for it is here.

    Args:
        layers: The sections, as ``resolved`` of ``config.yaml`` has them.

    Raises:
        ConfigError: As ``resolving.validate``, for what needs no code.
    """
    try:
        return resolving.validate(dict(layers))
    except ConfigError as error:
        if lacking(layers) is None:
            raise
        # Of a mapping of another kind nothing is known at all.
        if not isinstance(layers.get("method"), Mapping):
            raise error from None
    sections = resolving.upgraded(layers)
    for key in NAMED:
        sections[key] = listed(sections.get(key) or (), key)
    try:
        config = RunConfig.model_validate(sections)
        config.allocation.check(config.dataset.domains)
    except ValidationError as error:
        raise explained(error) from None
    return config


def lacking(layers: Mapping[str, Any]) -> ConfigError | None:
    """Return what code of a run is not here, as the error with its remedy; None where all is.

    Args:
        layers: The sections of the run.
    """
    try:
        plugins.allow(layers.get("plugins") or ())
        for kind, name in _named(layers):
            kind[name]
    except ConfigError as error:
        return error
    return None


def _named(layers: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield what a configuration names that a package or a file may have brought, with the registry of its kind."""
    sections = {key: value if isinstance(value := layers.get(key), Mapping) else {} for key in _SECTIONS}
    networks = sections["model"].get("per_node")
    names: list[tuple[Mapping[str, Any], Any]] = [
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
