"""Python values as the words of a command: what is typed and what is called are read and refused by the same code."""

import math
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from fedshift_app.config.arguments import LAUNCH_KEYS
from fedshift_app.config.layers import NAMED
from fedshift_app.config.resolving import FLAT_KEYS
from fedshift_core import json_text
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found
from fedshift_core.paths import path_text
from fedshift_core.yaml_files import written

#: Keys whose text is taken as it is; that of all others is YAML.
_PLAIN = (*FLAT_KEYS, *LAUNCH_KEYS, "model.weights")
_SECTIONS = ("method", "dataset")  # the plain keys of the same names are for their names
_RANGE = "search."  # prefix of a key of `fedshift tune`, whose value is a list, or the word off


def words(
    experiment: str | os.PathLike[str], keys: Mapping[str, Any], *, several: bool = False, plain: Collection[str] = ()
) -> list[str]:
    """Return ``[EXPERIMENT] [KEY=VALUE ...]`` as a command has it.

    Args:
        experiment: A name or a file; empty for the default one.
        keys: Values by key. ``evaluate_every`` stands for ``evaluate-every``, a mapping for the keys of a section
            (``train={"lr": 0.01}``). A key with the value None is left out.
        several: A list, tuple, range or array gives a key several values, as in a sweep; one value that is a list is
            then a list in a list.
        plain: Further keys whose text is taken as it is.

    Raises:
        ConfigError: If a value cannot be written as text, or the experiment is of another type.
    """
    first = path_text(experiment, "experiment", "a name or a file")
    return [*([first] if first else []), *(f"{key}={text}" for key, text in _written(keys, several, {*_PLAIN, *plain}))]


def command(name: str, arguments: Sequence[str]) -> str:
    """Return the command line that does the same."""
    return shlex.join(["fedshift", name, *arguments])


def _written(keys: Mapping[str, Any], several: bool, plain: Collection[str]) -> Iterator[tuple[str, str]]:
    for given, value in keys.items():
        key = hyphened if (hyphened := given.replace("_", "-")) in plain else given
        if value is None and key in plain:
            continue
        has_keys = "." not in key and key not in NAMED and (key not in plain or key in _SECTIONS)
        if has_keys and isinstance(value, Mapping):
            pairs = [(f"{key}.{inner}", inner_value) for inner, inner_value in value.items()]
        else:
            pairs = [(key, value)]
        for dotted, given_value in pairs:
            values, is_range = _of_python(given_value), dotted.startswith(_RANGE)
            if not several or is_range or not isinstance(values, list | tuple | range):
                values = [values]
            yield dotted, ",".join(text_of(dotted, value, dotted in plain or is_range) for value in values)


def _of_python(value: Any) -> Any:
    """Return an array or a number of NumPy or torch as lists and numbers of Python, and a path as text."""
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return value.tolist()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def text_of(key: str, value: Any, plain: bool = False) -> str:
    """Return a value as the text that a command reads it from.

    Args:
        key: The key, for messages.
        value: A string, a path, a number, a truth value, None, or lists and mappings of these.
        plain: A string is taken as it is; else as YAML.

    Raises:
        ConfigError: If it is of another type.
    """
    value = _of_python(value)
    if plain and isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        pairs = (f"{text_of(key, str(name))}: {text_of(key, item)}" for name, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple | range):
        return f"[{', '.join(text_of(key, item) for item in value)}]"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigError(f"{key}: expected a finite number, found {as_found(value)}")
        return written(value)
    if isinstance(value, str | bool | int) or value is None:
        return json_text.text_of(value)
    raise ConfigError(
        f"{key}: expected text, a path, a number, true, false, or lists and mappings of these, found {as_found(value)}"
    )
