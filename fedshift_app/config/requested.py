"""Finds the settings that a method requests of other sections, where only the run itself can tell."""

import shlex
from collections.abc import Mapping
from typing import Any

from fedshift_app.config.files import names
from fedshift_app.config.keys import as_requested, flat
from fedshift_app.config.resolving import DEFAULT_EXPERIMENT, resolve
from fedshift_app.config.sections import RunConfig
from fedshift_core import json_text
from fedshift_core.errors import ConfigError, DataError


def requested_by_method(given: Mapping[str, Any], config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return settings of other sections that a method requests in a user's experiment or for a user's images.

    For an experiment of conf/experiments on known images they can be found later (``lab.tables.results.loading``).

    Args:
        given: The run-config keys of the run.
        config: The run's configuration.

    Returns:
        By dotted key the value that the method requests, and that of the experiment without it; empty for known
        experiments, and if the experiment cannot be resolved by itself.
    """
    experiment = str(given.get("experiment") or DEFAULT_EXPERIMENT)
    if experiment in names("experiments") and config.dataset.known().own is None:
        return {}
    base = {key: given[key] for key in ("experiment", "dataset", "data-dir") if given.get(key)}
    if config.dataset.known().own is not None:  # integer labels have no meaning without them
        base["set"] = shlex.quote(f"dataset.classes={json_text.text_of(config.dataset.classes)}")
    try:
        with_method, without_method = (
            as_requested(flat(resolve(base | method).model_dump(mode="json")))
            for method in ({"method": str(config.method["name"])}, {})
        )
    except (ConfigError, DataError):
        return {}
    return {
        key: (with_method.get(key), without_method.get(key))
        for key in sorted(with_method.keys() | without_method.keys())
        if not key.startswith("method.") and with_method.get(key) != without_method.get(key)
    }
