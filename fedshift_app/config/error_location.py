"""Where in a person's YAML file a key stands that a mistake is about."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from yaml.nodes import MappingNode, Node, ScalarNode

from fedshift_core.errors import ConfigError
from fedshift_core.limits import shown
from fedshift_core.yaml_files import outline

Key = tuple[str | int, ...]
#: Line and column, from 1.
Place = tuple[int, int]

MOST_FILE = 60  # characters of a file's name at the end of a line


@contextmanager
def at(*key: str | int) -> Iterator[None]:
    """Say of a :class:`ConfigError` that is raised inside, and does not say so itself, which key it is about."""
    try:
        yield
    except ConfigError as error:
        error.keys = error.keys or (key,)
        raise


def placed(
    error: ConfigError, path: Path, method: str, typed: Collection[str], stands_for: Mapping[str, str]
) -> ConfigError:
    """Return a mistake with the line and column of each key that it is about, as far as they stand in a file.

    Args:
        error: What was found.
        path: The experiment's file.
        method: The run's method: ``methods: METHOD:`` in the file comes before what the file says of all.
        typed: Dotted keys of the command, which come before the file's.
        stands_for: Of a recipe, by dotted key the parameter of the method that it is said by.
    """
    if not error.keys:
        return error
    places = places_of(path)
    lines = str(error).split("\n")
    for i, key in enumerate(error.keys[: len(lines)]):
        dotted = ".".join(map(str, key))
        said = stands_for.get(dotted)
        read = (one.replace("-", "_") for one in (dotted, said) if one)  # as typed keys are
        if any(one == name or one.startswith(f"{name}.") for one in read for name in typed):
            continue
        exact: list[Key] = [key] if said is None else [tuple(said.split(".")), key]
        candidates = [*exact, key[:-1]] if len(key) > 2 else exact  # at last the list or mapping that it is in
        where = next((places[one] for key in candidates for one in _said_in(key, method) if one in places), None)
        if where is not None:
            lines[i] += f" (line {where[0]}, column {where[1]} of {shown(path.name, MOST_FILE)})"
    return ConfigError("\n".join(lines), keys=error.keys)


def _said_in(key: Key, method: str) -> Iterator[Key]:
    """Yield where a file may say a key, what counts most first."""
    own = key[0] == "method"
    special: Key = ("methods", method, *(key[1:] if own else key))
    for found in (key, special) if own else (special, key):
        yield found
        yield ("resolved", *found)  # the config.yaml of a run folder


def places_of(path: Path) -> dict[Key, Place]:
    """Return where each key and each entry of a list begins in a YAML file; none if it cannot be read.

    An entry of a list that has a name, as those of ``modules``, stands under its name as well.
    """
    try:
        node = outline(path)
    except ConfigError:
        return {}
    found: dict[Key, Place] = {}
    if node is not None:
        _walk(node, (), found)
    return found


def _walk(node: Node, above: Key, found: dict[Key, Place]) -> None:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            here = (*above, str(key.value))
            found[here] = _place(key)
            _walk(value, here, found)
    elif not isinstance(node, ScalarNode):
        for i, value in enumerate(node.value):
            names: tuple[str | int, ...] = (i, *_name(value))
            for name in names:
                found[(*above, name)] = _place(value)
                _walk(value, (*above, name), found)


def _name(node: Any) -> tuple[str, ...]:
    """Return the name of an entry of a list: itself, or what its key ``name`` says."""
    if isinstance(node, ScalarNode):
        return (str(node.value),)
    pairs = node.value if isinstance(node, MappingNode) else ()
    return tuple(str(value.value) for key, value in pairs if key.value == "name" and isinstance(value, ScalarNode))


def _place(node: Node) -> Place:
    return node.start_mark.line + 1, node.start_mark.column + 1
