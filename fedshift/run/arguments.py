"""Checks arguments whose type a command reads from its words, and a call gets as it is."""

import glob
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, shown
from fedshift_core.paths import Named, typed_path

T = TypeVar("T")


def whole(key: str, value: object, least: int, most: int) -> int:
    """Return a whole number.

    Args:
        key: The argument, for messages.
        value: What was given; a number of NumPy is one, too.
        least: The smallest that is allowed.
        most: The largest.

    Raises:
        ConfigError: If it is something else, or out of these bounds.
    """
    try:
        number = None if isinstance(value, bool) else value.__index__()  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        number = None
    if number is None or not least <= number <= most:
        raise ConfigError(f"{key}: expected a whole number from {least} to {most}, found {as_found(value)}")
    return int(number)


def names(key: str, value: object) -> tuple[str, ...]:
    """Return several names; a text alone is refused, whose letters would count as names.

    Args:
        key: The argument, for messages.
        value: What was given.

    Raises:
        ConfigError: If it is something else than a list of text.
    """
    listed = None if isinstance(value, str | bytes) or not isinstance(value, Iterable) else tuple(value)
    if listed is None or not all(isinstance(name, str) for name in listed):
        raise ConfigError(f"{key}: expected a list of names, found {as_found(value)}")
    return listed


def paths(given: Named | Iterable[Named], of: str, what: str = "run") -> list[Path]:
    """Return paths, with patterns replaced by what they match, in order.

    Args:
        given: One, or several.
        of: The function that they are for, in messages.
        what: What they are, in messages.

    Raises:
        ConfigError: If a pattern matches nothing, nothing is given, or something else than paths.
    """
    if not isinstance(given, Iterable | os.PathLike):
        raise ConfigError(f"{of}: expected a path or several, found {as_found(given)}")
    found = [
        path for each in ([given] if isinstance(given, str | os.PathLike) else given) for path in _matched(each, of)
    ]
    if not found:
        raise ConfigError(f"{of}: no {what} is given")
    return found


def _matched(given: Named, of: str) -> list[Path]:
    path = typed_path(given, of)
    if not glob.has_magic(str(path)) or path.exists():
        return [path]
    found = sorted(map(Path, glob.glob(str(path))))  # noqa: PTH207 (Path.glob refuses absolute patterns)
    if not found:
        raise ConfigError(f"{of}: nothing matches {as_found(str(given))}")
    return found


def one_of(key: str, name: str, here: Mapping[str, T], where: str) -> T:
    """Return what has a name; without a name the only one there is.

    Args:
        key: The argument, for messages.
        name: The name; empty for the only one.
        here: All there are, by name.
        where: Where they are, for messages.

    Raises:
        ConfigError: If there is none of the name, or none or several and no name.
    """
    if name in here or (not name and len(here) == 1):
        return here[name or next(iter(here))]
    found = f"{as_found(name)} is none" if name else "several are there" if here else "none is there"
    raise ConfigError(f"{key}: {found}; allowed are {shown(', '.join(here)) or 'none'}, in {where}")
