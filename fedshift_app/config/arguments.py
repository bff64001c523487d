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
SWITCHES = ("true", "false")
#: The words of keys that take some alone.
WORDS = {"engine": ENGINES} | dict.fromkeys(("report", "profile", "allow-changed"), SWITCHES)
#: Keys of the configuration without a dot.
WITHOUT_DOT = (MODEL_PER_NODE, *NAMED, "checkpoint_seconds", "keep", "keep_rounds", "task", "tuned")
#: The smallest and the largest value of each number; those of whole numbers are whole.
BOUNDS: dict[str, tuple[float, float]] = {
    "rounds": (0, MOST_ROUNDS),
    "round": (1, MOST_ROUNDS),
    "evaluate-every": (1, MOST_ROUNDS),
    "seed": (0, LARGEST_SEED),
    "nodes": (1, MOST_NODES),
    "workers": (1, MOST_CORES),
    "actors": (1, MOST_CORES),
    "cpus-per-client": (1, MOST_CORES),
    "gpus-per-client": (0.0, 1.0),
    "evaluate-fraction": (1e-9, 1.0),
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
            launch[key] = _value(key, value)
        elif key in configuration.FLAT_KEYS:
            flat[key] = _value(key, value)
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


def _value(key: str, text: str) -> str | int | float:
    """Return the value of a key of the command."""
    if key in WORDS:
        if text not in WORDS[key]:
            words = ", ".join(WORDS[key])
            raise ConfigError(f"{key}: {as_found(text)}; allowed are {words}{meant(text, WORDS[key])}")
        return text == "true" if WORDS[key] == SWITCHES else text
    if key not in BOUNDS:
        return not_empty(key, text)
    least, most = BOUNDS[key]
    try:
        number = type(most)(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        what = "a whole number" if isinstance(most, int) else "a number"
        raise ConfigError(f"{key}: expected {what} from {least} to {most}, found {as_found(text)}")
    return number
