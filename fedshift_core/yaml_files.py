"""Reads YAML strictly: files that hold a mapping, and values of the command line.

A key accepts words, numbers, true and false, null, and lists and mappings of these. Anything of another kind, too
large, too deep or endless is refused in one line before it is built.
"""

import copy
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.nodes import MappingNode, Node, ScalarNode

from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found

MOST_BYTES = 1 << 18  # of a text
_MOST_KEPT = 1 << 14  # characters of a text whose value is kept for the next time
MOST_VALUES = 20_000  # of a text, including those that aliases repeat
MOST_DEPTH = 20  # of lists and mappings in one another
MOST_KEY = 200  # characters
LARGEST_INTEGER = 2**63 - 1  # limit of NumPy, torch and Flower's messages

#: Keys of sections that hold names of a user's own, which are taken as typed: 010 and on are no number and no truth.
NAMES = {
    "dataset": ("name", "of", "labels", "public"),
}
#: Keys of sections that hold a list of such names, or a mapping by them.
BY_NAME = {
    "dataset": ("domains", "classes"),
    "allocation": ("counts", "share", "held_out"),
    "train": ("class_weights",),
}

Key = tuple[str | int, ...]
#: Line and column, from 1.
Place = tuple[int, int]

_TAG = "tag:yaml.org,2002:"


class _Problem(ValueError):  # noqa: N818 (a part of a message)
    """A problem of a text, at a place in it."""

    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(f"line {mark.line + 1}, column {mark.column + 1}: {problem}")


class _Builder(SafeConstructor):
    """Builds values that a key may accept, and notes the place of each key and list entry.

    Attributes:
        places: Line and column by key; an entry of a list is there by its number and by its name.
    """

    def __init__(self, *, scalar_keys: bool) -> None:
        super().__init__()
        self._scalar_keys, self._values, self._letters = scalar_keys, 0, 0
        self.places: dict[Key, Place] = {}

    def value(self, node: Node, key: Key, depth: int = 1) -> Any:
        """Return the value of a node, which stands under a key."""
        self._values += 1
        if depth > MOST_DEPTH + 1:
            raise _Problem(f"lists and mappings are nested more than {MOST_DEPTH} deep", node.start_mark)
        if self._values > MOST_VALUES:
            problem = f"it has more than {MOST_VALUES} values, including those that aliases repeat"
            raise _Problem(problem, node.start_mark)
        section, name = map(str, key[-2:])
        named = name in BY_NAME.get(section, ())
        if isinstance(node, ScalarNode):
            return self._scalar(node, _is_name(section, name, node))
        kind = node.tag.removeprefix(_TAG)
        if kind != ("map" if isinstance(node, MappingNode) else "seq"):
            raise _Problem(f"the type {as_found(kind)} is not allowed as a value", node.start_mark)
        if isinstance(node, MappingNode):
            return self._mapping(node, key, named, depth)
        values = []
        for i, part in enumerate(node.value):
            inner = (*key, _name(part) or i)
            self.places |= dict.fromkeys([(*key, i), inner], _place(part))
            is_name = named and isinstance(part, ScalarNode)
            values.append(self._scalar(part, True) if is_name else self.value(part, inner, depth + 1))
        return values

    def _mapping(self, node: MappingNode, above: Key, named: bool, depth: int) -> dict[Any, Any]:
        """Build a mapping with different words as keys: YAML would silently drop the first of two equal keys."""
        values: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            mark = key_node.start_mark
            if not isinstance(key_node, ScalarNode):
                raise _Problem("a list or mapping is not a key; a key is a word", mark)
            key, inner = self._scalar(key_node, named), (*above, key_node.value)
            taken = isinstance(key, str | bool | int | float if self._scalar_keys else str)
            if not taken or not str(key).isprintable() or not 0 < len(str(key)) <= MOST_KEY:
                raise _Problem(
                    f"{as_found(key)} is not a key; a key is a word of at most {MOST_KEY} characters without control "
                    "characters, in quotes if YAML takes it for something else",
                    mark,
                )
            if key in values:
                raise _Problem(f"the key {as_found(key)} comes twice, again in line {mark.line + 1}", mark)
            self.places[inner] = _place(key_node)
            values[key] = self.value(value_node, inner, depth + 1)
        return values

    def _scalar(self, node: ScalarNode, is_name: bool) -> Any:
        """Return a word, a number, a truth value or null."""
        text, kind, mark = node.value, "str" if is_name else node.tag.removeprefix(_TAG), node.start_mark
        self._letters += len(text)
        if self._letters > MOST_BYTES:
            raise _Problem(f"with expanded aliases it has more than {MOST_BYTES} characters", mark)
        if kind == "str":
            if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
                raise _Problem(f"{as_found(text)} contains NUL or half a character, which no key accepts", mark)
            return text
        if kind not in ("null", "bool", "int", "float"):
            raise _Problem(
                f"{as_found(text)} is of the type {as_found(kind)}, which no key accepts; put a word in quotes", mark
            )
        if kind == "int" and len(text) > MOST_KEY:  # Python takes no number of so many digits
            raise _Problem(f"{as_found(text)}: whole numbers go up to {LARGEST_INTEGER}", mark)
        try:
            value = getattr(self, f"construct_yaml_{kind}")(node)
        except (ValueError, KeyError, IndexError, OverflowError) as error:  # such as 0x_, which looks like a number
            raise _Problem(f"{as_found(text)} cannot be read: {error}", mark) from None
        if kind == "int" and abs(value) > LARGEST_INTEGER:
            raise _Problem(f"{as_found(value)}: whole numbers go up to {LARGEST_INTEGER}", mark)
        return value


def _is_name(section: str, key: object, node: ScalarNode) -> bool:
    """Tell whether a value is a name of a user's own; ``dataset.public`` may be a share."""
    if key not in NAMES.get(section, ()) or node.tag == f"{_TAG}null":
        return False
    try:
        return key != "public" or not 0 < float(node.value) < 1
    except ValueError:
        return True


def _name(node: Node) -> str:
    """Return the name of a list entry: itself, or the value of its key ``name``; empty if it has none."""
    if isinstance(node, ScalarNode):
        return str(node.value)
    pairs = node.value if isinstance(node, MappingNode) else ()
    return next((str(v.value) for k, v in pairs if k.value == "name" and isinstance(v, ScalarNode)), "")


def _place(node: Node) -> Place:
    return node.start_mark.line + 1, node.start_mark.column + 1


def parse(text: str, *, scalar_keys: bool = False, dotted: str = "") -> Any:
    """Return the value of a YAML text.

    Args:
        text: The text.
        dotted: The key whose value it is, such as ``dataset.domains``; empty for a file.
        scalar_keys: Keys may also be true, false and numbers, not only words.

    Raises:
        ValueError: In one line, if it is not YAML, too large, or has a value that no key accepts.
    """
    if len(text) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} characters")
    if len(text) > _MOST_KEPT:
        return _parse(text, scalar_keys, dotted)[0]
    return copy.deepcopy(_kept(text, scalar_keys, dotted)[0])  # callers may change what they get


def _parse(text: str, scalar_keys: bool, dotted: str = "") -> tuple[Any, dict[Key, Place]]:
    try:
        node = yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        builder = _Builder(scalar_keys=scalar_keys)
        section, _, key = dotted.partition(".")
        return None if node is None else builder.value(node, (section, key)), builder.places
    except RecursionError:  # PyYAML's own parser; that of libyaml has a bound
        raise ValueError(f"lists and mappings are nested more than {MOST_DEPTH} deep") from None
    except yaml.MarkedYAMLError as error:
        problem = ", ".join(filter(None, [error.context, error.problem]))
        raise (_Problem(problem, error.problem_mark) if error.problem_mark else ValueError(problem)) from None
    except yaml.YAMLError as error:
        raise ValueError(str(error).splitlines()[0]) from None


#: A process reads the same few files for each configuration, and parsing is slow. Errors are not kept.
_kept = functools.lru_cache(maxsize=256)(_parse)


def written(value: Any) -> str:
    """Return a value as the YAML of a command line reads it back."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {written(item)}" for key, item in value.items()) + "}"
    text = json.dumps(value)
    if isinstance(value, float) and "e" in text and "." not in text:  # YAML 1.1 reads 1e-05 as a word
        return text.replace("e", ".0e")
    return text


def as_yaml(content: Mapping[str, Any]) -> str:
    """Return a mapping as YAML, its keys in their order."""
    return str(yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True))


def read_yaml(path: Path, *, scalar_keys: bool = False) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Args:
        path: The file.
        scalar_keys: Keys may also be true, false and numbers, not only words.

    Raises:
        ConfigError: If it cannot be read, is not YAML, is too large, or has no mapping.
    """
    try:
        content = parse(_text(path), scalar_keys=scalar_keys)
    except ValueError as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {error}") from None
    if content is None or isinstance(content, dict):
        return content or {}
    raise ConfigError(f"{path}: expected a mapping of keys to values, found {type(content).__name__}")


def places_of(path: Path) -> dict[Key, Place]:
    """Return the line and column of each key and list entry in a YAML file; none if it cannot be read."""
    try:
        return {key[2:]: place for key, place in _parse(_text(path), scalar_keys=True)[1].items()}
    except (ConfigError, ValueError):
        return {}


def _text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        ConfigError: If it cannot be read.
        ValueError: If it is too large, or not UTF-8.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    return data.decode()
