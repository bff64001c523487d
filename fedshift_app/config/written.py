"""Reads a run's configuration from its folder, where the plugins and packages of the run may be missing.

Results need no code, as the scores are in the folder. Without a plugin or package, the settings stay as the run wrote
them, with every default.
"""

from collections.abc import Mapping
from typing import Any

from fedshift_app.config import plugins, validating
from fedshift_app.config.sections import RunConfig
from fedshift_core.errors import ConfigError


def read_back(layers: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of a finished run, checked as far as its code is installed here.

    Args:
        layers: Its sections (``validating.sections_of_run``).

    Raises:
        ConfigError: As ``validating.validate``, for checks that need no code.
    """
    given = () if plugins.used(layers) else tuple(layers.get("plugins") or ())
    try:
        # Where none of its files defines anything of it, they need not run.
        config = validating.validate({**layers, "plugins": ()} if given else layers, finished=True)
    except ConfigError:
        # Without a section of the method nothing is known.
        if lacking(layers) is None or not isinstance(layers.get("method"), Mapping):
            raise
        return validating.checked_sections(layers, known=False)
    return config.model_copy(update={"plugins": given}) if given else config


def lacking(layers: Mapping[str, Any]) -> ConfigError | None:
    """Return an error with its remedy if code of a run is missing here; otherwise None.

    Args:
        layers: The sections of the run.
    """
    if layers.get("plugins") and not plugins.used(layers):
        return None
    try:
        plugins.allow(layers.get("plugins") or ())
        for kind, name in plugins.things(layers):
            kind[name]
    except ConfigError as error:
        return error
    return None
