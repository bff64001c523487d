"""Finds the line and column in a YAML file of the key that an error is about."""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedshift_app.config import recipes, registry
from fedshift_app.config.options_of_a_kind import options
from fedshift_core.errors import ConfigError
from fedshift_core.limits import message, shown
from fedshift_core.yaml_files import Key, places_of

MOST_FILE = 60  # characters of the file's name in a message


@contextmanager
def at(*key: str | int) -> Iterator[None]:
    """Set the key of a :class:`ConfigError` that is raised inside and has none."""
    try:
        yield
    except ConfigError as error:
        error.keys = error.keys or (key,)
        raise


def beginning_with_key(text: str) -> ConfigError:
    """Return an error whose text begins with the key that it is about."""
    return ConfigError(text, keys=((*re.split("[=: ]", text)[0].split("."),),))


def placed(error: ConfigError, path: Path, method: str, typed: Collection[str]) -> ConfigError:
    """Return an error with the line and column of each of its keys that are in the file.

    Args:
        error: The error.
        path: The experiment's file.
        method: The run's method: ``methods: METHOD:`` in the file overrides the file's other sections.
        typed: Dotted keys of the command, which override the file's.
    """
    places = places_of(path) if error.keys else {}
    stands_for = recipes.parameter_of_key(registry.get(method)) if method in registry.METHODS else {}
    lines = message(error.text or "").split("\n")
    for i, key in enumerate(error.keys[: len(lines)]):
        dotted = ".".join(map(str, key))
        parameter = tuple(stands_for.get(dotted, "").split("."))
        given = [f"{'.'.join(map(str, each))}.".replace("-", "_") for each in (key, parameter)]
        if any(f"{name}.".startswith(each) or each.startswith(f"{name}.") for each in given for name in typed):
            continue
        mark = options(str(key[0])).get(str(key[1])) if len(key) == 2 else None
        nested = (key[0], mark.key, key[1]) if mark else key  # of an option in the mapping of its kind
        outer = key[:-1] if len(key) > 2 else key  # as a last resort the enclosing list or mapping
        for each in (spot for part in (parameter, key, nested, outer) for spot in _spots(part, method)):
            if each in places:
                line, column = places[each]
                lines[i] += f" (line {line}, column {column} of {shown(path.name, MOST_FILE)})"
                break
    text = "\n".join(lines)
    return error if text == message(error.text or "") else ConfigError(text, error.remedy, error.keys)


def _spots(key: Key, method: str) -> Iterator[Key]:
    """Yield where a file may set a key, in order of precedence; that of a run has all under ``resolved``."""
    is_method = key[0] == "method"
    special: Key = ("methods", method, *(key[1:] if is_method else key))
    for spot in (key, special) if is_method else (special, key):
        yield spot
        yield ("resolved", *spot)
