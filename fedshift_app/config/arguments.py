"""Parses the arguments of ``fedshift run`` and of each run of a sweep: ``[EXPERIMENT] [KEY=VALUE ...]``."""

import math
import shlex
from typing import Any

from fedshift_app.config import dotted_keys
from fedshift_app.config import resolving as configuration
from fedshift_app.config.layers import MODEL_PER_NODE, NAMED
from fedshift_clients.models import packages
from fedshift_core.errors import ConfigError
from fedshift_core.limits import LARGEST_SEED, MOST_CORES, MOST_NODES, MOST_ROUNDS, as_found
from fedshift_core.paths import user_path
from fedshift_core.spelling import meant

#: Keys of ``fedshift run`` that decide the launch; all others belong to the run's configuration.
LAUNCH_KEYS = ("engine", "nodes", "workers", "actors", "cpus-per-client", "gpus-per-client", "report")
ENGINES = ("simulation", "inline")
#: Keys of the configuration without a dot.
WITHOUT_DOT = (MODEL_PER_NODE, *NAMED, "checkpoint_seconds", "keep", "keep_rounds", "tuned")
#: Largest value of each whole number.
MOST = {
    "rounds": MOST_ROUNDS,
    "round": MOST_ROUNDS,
    "evaluate-every": MOST_ROUNDS,
    "seed": LARGEST_SEED,
    "nodes": MOST_NODES,
    "workers": MOST_CORES,
    "actors": MOST_CORES,
    "cpus-per-client": MOST_CORES,
}


def parse_arguments(arguments: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the flat run-config keys and the launch keys of ``[EXPERIMENT] [key=value ...]``.

    Raises:
        ConfigError: If a key is unknown or a value has the wrong type.
    """
    flat: dict[str, Any] = {}
    launch: dict[str, Any] = {}
    dotted: list[str] = []
    for i, argument in enumerate(arguments):
        key, sep, value = argument.partition("=")
        if not sep and i == 0:
            flat["experiment"] = not_empty("experiment", argument)
        elif not sep:
            raise ConfigError(f"{as_found(argument)} is not of the form key=value")
        elif key in LAUNCH_KEYS:
            launch[key] = _launch_value(key, value)
        elif key in configuration.FLAT_KEYS:
            flat[key] = _flat_value(key, value)
            if flat[key] is False and key != "allow-changed":  # Flower passes false where nothing is typed, too
                dotted.append(argument)
        elif key == "model.weights" and value and not value.startswith(packages.PREFIX):
            dotted.append(f"{key}={user_path(value, key)}")
        elif "." in key or key.replace("-", "_") in WITHOUT_DOT:
            dotted.append(argument)
        else:
            flat_keys = [name for name in configuration.FLAT_KEYS if name != "allow-changed"]  # here an option
            known = (*flat_keys, *LAUNCH_KEYS, *WITHOUT_DOT)
            raise ConfigError(
                f"unknown key {as_found(key)}; there are {', '.join(known)}, and dotted ones such as train.lr"
                f"{dotted_keys.meant(key, known)}"
            )
    flat["set"] = " ".join([flat.get("set", ""), *(shlex.quote(part) for part in dotted)]).strip()
    flat["output-dir"] = str(user_path(flat.get("output-dir") or "runs", "output-dir"))
    for key in ("data-dir", "resume"):
        if flat.get(key):
            flat[key] = str(user_path(flat[key], key))
    experiment = flat.get("experiment", "")
    if experiment.endswith((".yaml", ".yml")):
        flat["experiment"] = str(user_path(experiment, "experiment"))
    return flat, launch


def not_empty(key: str, value: str) -> str:
    """Return the value of a typed key.

    Raises:
        ConfigError: If it is empty, as a shell variable may be; the default would silently replace it.
    """
    if not value.strip():
        raise ConfigError(f"{key}: expected a value, found {as_found(value)}; leave the key out for its default")
    return value


def _flat_value(key: str, value: str) -> str | int | float:
    default = configuration.FLAT_KEYS[key]
    if isinstance(default, bool):
        return _switch(key, value)
    if isinstance(default, float):
        return _share(key, value)
    if not isinstance(default, int):
        return not_empty(key, value)
    return _whole_number(key, value, least=0 if key in ("rounds", "seed") else 1)


def _switch(key: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise ConfigError(f"{key}: expected true or false, found {as_found(value)}")
    return value == "true"


def _share(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number <= 1:
        raise ConfigError(f"{key}: expected a number above 0 and at most 1, found {as_found(value)}")
    return number


def _launch_value(key: str, value: str) -> str | int | float:
    if key == "engine":
        if value not in ENGINES:
            raise ConfigError(f"engine: {as_found(value)}; allowed are {', '.join(ENGINES)}{meant(value, ENGINES)}")
        return value
    if key == "report":
        return _switch(key, value)
    if key != "gpus-per-client":
        return _whole_number(key, value, least=1)
    try:
        gpus = float(value)
    except ValueError:
        gpus = -1.0
    if not 0 <= gpus <= 1:
        raise ConfigError(f"{key}: expected a number from 0 to 1, found {as_found(value)}")
    return gpus


def _whole_number(key: str, value: str, least: int = 0) -> int:
    try:
        number = int(value)
    except ValueError:
        raise ConfigError(f"{key}: expected a whole number up to {MOST[key]}, found {as_found(value)}") from None
    if number < least:
        raise ConfigError(f"{key}: expected at least {least}, found {as_found(number)}")
    if number > MOST[key]:
        raise ConfigError(f"{key}: expected at most {MOST[key]}, found {as_found(number)}")
    return number
