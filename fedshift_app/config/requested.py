"""What a method asks of an experiment's other sections, where only the run itself can tell."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from fedshift_app.config.files import names
from fedshift_app.config.keys import as_asked, flat
from fedshift_app.config.resolving import DEFAULT_EXPERIMENT, resolve
from fedshift_app.config.sections import RunConfig
from fedshift_core.errors import ConfigError, DataError


def asked_by_method(given: Mapping[str, Any], config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return what a run's method asks of other sections in a user's experiment, or for a user's images.

    Of an experiment of conf/experiments on known images anybody can find that out later (``comparing.runs``).

    Args:
        given: The run-config keys of the run.
        config: The run.

    Returns:
        By dotted key the value that the method asks for, and that of the experiment without it; empty for what is
        known, and where the experiment cannot be resolved by itself.
    """
    experiment = str(given.get("experiment") or DEFAULT_EXPERIMENT)
    if experiment in names("experiments") and config.dataset.known().own is None:
        return {}
    base = {key: given[key] for key in ("experiment", "dataset", "data-dir") if given.get(key)}
    if config.dataset.known().own is not None:  # integer labels have no meaning without them
        base["set"] = shlex.quote(f"dataset.classes={json.dumps(config.dataset.classes)}")
    try:
        asked, plain = (
            as_asked(flat(resolve(base | method).model_dump(mode="json")))
            for method in ({"method": str(config.method["name"])}, {})
        )
    except (ConfigError, DataError):
        return {}
    return {
        key: (asked.get(key), plain.get(key))
        for key in sorted(asked.keys() | plain.keys())
        if not key.startswith("method.") and asked.get(key) != plain.get(key)
    }
