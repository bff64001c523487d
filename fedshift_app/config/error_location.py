"""Finds the line and column in a YAML file of the key that an error is about."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from yaml.nodes import MappingNode, Node, ScalarNode

from fedshift_core.errors import ConfigError
from fedshift_core.limits import message, shown
from fedshift_core.yaml_files import outline

Key = tuple[str | int, ...]
#: Line and column, from 1.
Place = tuple[int, int]

MOST_FILE = 60  # characters of the file's name in a message


@contextmanager
def at(*key: str | int) -> Iterator[None]:
    """Set the key of a :class:`ConfigError` that is raised inside and has none."""
    try:
        yield
    except ConfigError as error:
        error.keys = error.keys or (key,)
        raise


def placed(
    error: ConfigError, path: Path, method: str, typed: Collection[str], stands_for: Mapping[str, str]
) -> ConfigError:
    """Return an error with the line and column of each of its keys that are in the file.

    Args:
        error: The error.
        path: The experiment's file.
        method: The run's method: ``methods: METHOD:`` in the file overrides the file's other sections.
        typed: Dotted keys of the command, which override the file's.
        stands_for: For a recipe, the method's parameter that sets each dotted key.
    """
    if not error.keys:
        return error
    places = places_of(path)
    lines = message(error.text or "").split("\n")
    for i, key in enumerate(error.keys[: len(lines)]):
        dotted = ".".join(map(str, key))
        parameter = stands_for.get(dotted)
        given_keys = [key.replace("-", "_") for key in (dotted, parameter) if key]  # as typed keys are
        if any(_within(given, name) or _within(name, given) for given in given_keys for name in typed):
            continue
        exact: list[Key] = [key] if parameter is None else [tuple(parameter.split(".")), key]
        candidates = [*exact, key[:-1]] if len(key) > 2 else exact  # as a last resort the enclosing list or mapping
        place = next(
            (places[given] for key in candidates for given in _candidates(key, method) if given in places), None
        )
        if place is not None:
            lines[i] += f" (line {place[0]}, column {place[1]} of {shown(path.name, MOST_FILE)})"
    return ConfigError("\n".join(lines), error.remedy, error.keys)


def _within(key: str, section: str) -> bool:
    """Tell whether a dotted key is another, or lies in it: one typed within a key of the file replaces its value."""
    return key == section or key.startswith(f"{section}.")


def _candidates(key: Key, method: str) -> Iterator[Key]:
    """Yield the positions where a file may set a key, in order of precedence."""
    is_method = key[0] == "method"
    special: Key = ("methods", method, *(key[1:] if is_method else key))
    for place in (key, special) if is_method else (special, key):
        yield place
        yield ("resolved", *place)  # the config.yaml of a run folder


def places_of(path: Path) -> dict[Key, Place]:
    """Return the place of each key and list entry in a YAML file; empty if it cannot be read.

    A list entry with a name, such as those of ``modules``, is listed under its name as well.
    """
    try:
        node = outline(path)
    except ConfigError:
        return {}
    places: dict[Key, Place] = {}
    if node is not None:
        _walk(node, (), places)
    return places


def _walk(node: Node, above: Key, places: dict[Key, Place]) -> None:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            position = (*above, str(key.value))
            places[position] = _place(key)
            _walk(value, position, places)
    elif not isinstance(node, ScalarNode):
        for i, value in enumerate(node.value):
            names: tuple[str | int, ...] = (i, *_name(value))
            for name in names:
                places[(*above, name)] = _place(value)
                _walk(value, (*above, name), places)


def _name(node: Any) -> tuple[str, ...]:
    """Return the name of a list entry: itself, or the value of its key ``name``."""
    if isinstance(node, ScalarNode):
        return (str(node.value),)
    pairs = node.value if isinstance(node, MappingNode) else ()
    return tuple(str(value.value) for key, value in pairs if key.value == "name" and isinstance(value, ScalarNode))


def _place(node: Node) -> Place:
    return node.start_mark.line + 1, node.start_mark.column + 1
