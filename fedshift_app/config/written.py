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
        ConfigError: As ``validating.recorded``, for checks that need no code.
    """
    config = validating.checked_sections(layers, known=False)
    given = () if plugins.used(config) else config.plugins
    try:
        # Where none of its files defines anything of it, they need not run.
        complete = validating.recorded({**layers, "plugins": ()} if given else layers)
    except ConfigError:
        if lacking(config) is None:
            raise
        return config
    return complete.model_copy(update={"plugins": given}) if given else complete


def lacking(config: RunConfig) -> ConfigError | None:
    """Return an error with its remedy if code of a run is missing here; otherwise None."""
    if config.plugins and not plugins.used(config):
        return None
    try:
        plugins.allow(config.plugins)
        for kind, name in plugins.things(config):
            kind[name]
    except ConfigError as error:
        return error
    return None
