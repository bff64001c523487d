"""Reads YAML strictly: files that hold a mapping, and values of the command line.

A key accepts words, numbers, true and false, null, and lists and mappings of these. Anything of another kind, too
large, too deep or endless is refused in one line before it is built.
"""

import contextlib
import copy
import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode

from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found

MOST_BYTES = 1 << 18  # of a text
_MOST_KEPT = 1 << 14  # characters of a text whose value is kept for the next time
MOST_VALUES = 20_000  # of a text, including those that aliases repeat
MOST_DEPTH = 20  # of lists and mappings in one another
MOST_KEY = 200  # characters
LARGEST_INTEGER = 2**63 - 1  # limit of NumPy, torch and Flower's messages

#: Tabs and directives, of which PyYAML takes less than libyaml, which reads eight times as fast.
_OWN_WAY = re.compile(r"\t|^%", re.M)

#: Keys of sections that hold names of a user's own, which are taken as typed: 010 and on are no number and no truth.
NAMES = {
    "dataset": ("name", "of", "labels", "public"),
}
#: Keys of sections that hold a list of such names, or a mapping by them.
BY_NAME = {
    "dataset": ("domains", "classes"), "allocation": ("counts", "share", "held_out"), "train": ("class_weights",),
}  # fmt: skip

_TAG = "tag:yaml.org,2002:"
_KNOWN = tuple(_TAG + kind for kind in ("null", "bool", "int", "float", "str", "seq", "map"))
_KINDS = {"timestamp": "a date", "binary": "binary data", "set": "a set", "omap": "a list of pairs"}


class _OnceLoader(yaml.SafeLoader):
    """Builds values that a key may accept, with each key of a mapping once, or raises an error."""

    keys: tuple[type, ...] = (str,)  # allowed types of a mapping's keys

    def __init__(self, text: str, dotted: str = "") -> None:
        super().__init__(text)
        self._depth = self._values = 0
        self._dotted = dotted

    def read_by(self, parser: Any) -> None:
        """Take what the text consists of from another parser of it."""
        for name in ("check_event", "peek_event", "get_event"):
            setattr(self, name, getattr(parser, name))

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Build a node, unless the text is too deep or too long: PyYAML calls itself for each level."""
        self._depth += 1
        self._values += 1
        self._bound(self._depth, self._values, self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def get_single_node(self) -> Node | None:
        """Build the only document, unless its expanded aliases are too large or too deep."""
        node: Node | None = super().get_single_node()
        if node is not None:
            self._values, self._characters = 0, 0
            self._walk(node, 1)
            section, _, key = self._dotted.partition(".")
            _take_as_typed(section, key, node)
        return node

    def _walk(self, node: Node, depth: int) -> None:
        self._values += 1
        self._bound(depth, self._values, node.start_mark)
        if isinstance(node, ScalarNode):
            self._characters += len(node.value)
            if self._characters > MOST_BYTES:
                raise _problem(f"with expanded aliases it has more than {MOST_BYTES} characters", node)
        if isinstance(node, MappingNode):
            for section, content in node.value:
                for key, value in content.value if isinstance(content, MappingNode) else ():
                    _take_as_typed(str(section.value), str(key.value), value)
        for part in () if isinstance(node, ScalarNode) else node.value:
            for inner in part if isinstance(node, MappingNode) else (part,):
                self._walk(inner, depth + 1)

    def _bound(self, depth: int, values: int, mark: yaml.Mark) -> None:
        if depth > MOST_DEPTH + 1:
            raise _ProblemError(f"lists and mappings are nested more than {MOST_DEPTH} deep", mark)
        if values > MOST_VALUES:
            raise _ProblemError(f"it has more than {MOST_VALUES} values, including those that aliases repeat", mark)

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        """Build the value of a node; an invalid number is reported with its line."""
        if node.tag not in _KNOWN:
            kind = node.tag.removeprefix(_TAG)
            description = _KINDS.get(kind, f"of the type {as_found(kind)}")
            if not isinstance(node, ScalarNode):
                raise _problem(f"{description} is not allowed as a value", node)
            raise _problem(f"{as_found(node.value)} is {description}, which no key accepts; put a word in quotes", node)
        try:
            value = super().construct_object(node, deep)
        except (ValueError, TypeError, KeyError, OverflowError, AttributeError) as error:
            # Such as "0x_", which only looks like a number, or a sequence tagged as a number.
            raise _problem(f"{as_found(node.value)} cannot be read: {error}", node) from None
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise _problem(f"{as_found(value)}: whole numbers go up to {LARGEST_INTEGER}", node)
        if isinstance(value, str):
            _check_word(value, node)
        return value

    def construct_yaml_int(self, node: ScalarNode) -> int:
        """Build a whole number, unless it has too many digits for Python."""
        if len(node.value) > MOST_KEY:
            raise _problem(f"{as_found(node.value)}: whole numbers go up to {LARGEST_INTEGER}", node)
        return int(super().construct_yaml_int(node))

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping with different words as keys: YAML would silently drop the first of two equal keys."""
        if not isinstance(node, MappingNode):
            raise _problem("expected a mapping of keys to values", node)
        seen = set()
        for key_node, value_node in node.value:
            key = self._key(key_node)
            if node.flow_style and isinstance(key, str) and ":" in key[1:-1] and _left_out(value_node):
                before, _, after = key.partition(":")
                raise _problem(f"{as_found(key)}: a space is missing after the colon, {{{before}: {after}}}", key_node)
            if key in seen:
                raise _problem(
                    f"the key {as_found(key)} comes twice, again in line {key_node.start_mark.line + 1}", key_node
                )
            seen.add(key)
        return super().construct_mapping(node, deep)

    def _key(self, node: Node) -> Any:
        if not isinstance(node, ScalarNode):
            raise _problem("a list or mapping is not a key; a key is a word", node)
        key = self.construct_object(node, deep=True)
        if not isinstance(key, self.keys):
            raise _problem(
                f"{as_found(key)} is not a key; a key is a word, in quotes if YAML takes it for something else", node
            )
        if isinstance(key, str) and not (key.isprintable() and 0 < len(key) <= MOST_KEY):
            raise _problem(
                f"{as_found(key)} is not a key; a key is a word of at most {MOST_KEY} characters, "
                "without control characters",
                node,
            )
        return key


class _OnceLoaderOfMethods(_OnceLoader):
    """Accepts true, false and numbers as keys too."""

    keys = (str, bool, int, float)


_OnceLoader.add_constructor(_TAG + "int", _OnceLoader.construct_yaml_int)


class _ProblemError(ConstructorError):
    """An error in a text, with its place."""

    def __init__(self, problem: str, mark: yaml.Mark) -> None:
        super().__init__(problem=problem, problem_mark=mark)


def _problem(problem: str, node: Node) -> _ProblemError:
    return _ProblemError(problem, node.start_mark)


def _take_as_typed(section: str, key: str, node: Node) -> None:
    """Make names in a value words: itself, those of a list, the keys of a mapping."""
    scalars: list[Node] = []
    if key in BY_NAME.get(section, ()) and isinstance(node, MappingNode):
        scalars = [name for name, _ in node.value]
    elif key in BY_NAME.get(section, ()) and not isinstance(node, ScalarNode):
        scalars = node.value
    elif key in NAMES.get(section, ()) and node.tag != _TAG + "null":
        scalars = [] if key == "public" and _is_share(node.value) else [node]
    for scalar in scalars:
        if isinstance(scalar, ScalarNode):
            scalar.tag = _TAG + "str"


def _is_share(text: object) -> bool:
    try:
        return 0 < float(str(text)) < 1
    except ValueError:
        return False


def _left_out(node: Node) -> bool:
    """Return whether a value is absent, without even null or quotes."""
    return isinstance(node, ScalarNode) and node.tag == _TAG + "null" and node.value == ""


def _check_word(word: str, node: Node) -> None:
    """Refuse NUL and halves of characters, which no file name and no message can contain."""
    if "\0" in word or any("\ud800" <= letter <= "\udfff" for letter in word):
        raise _problem(f"{as_found(word)} contains NUL or half a character, which no key accepts", node)


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
        return _parse(text, scalar_keys, dotted)
    return copy.deepcopy(_kept(text, scalar_keys, dotted))  # callers may change what they get


def _parse(text: str, scalar_keys: bool, dotted: str = "") -> Any:
    kind = _OnceLoaderOfMethods if scalar_keys else _OnceLoader
    if yaml.__with_libyaml__ and not _OWN_WAY.search(text):
        from yaml._yaml import CParser

        # What libyaml refuses, PyYAML reads again, for its message: the same with and without libyaml.
        with contextlib.suppress(yaml.YAMLError, UnicodeError):
            loader = kind(text, dotted)
            loader.read_by(CParser(text))
            return loader.get_single_data()
    try:
        return kind(text, dotted).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(where + ", ".join(filter(None, [error.context, error.problem]))) from None
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
    """Return a mapping as YAML, its keys in their order; by libyaml where PyYAML has it, in a quarter of the time."""

    def dumped(dumper: Any) -> str:
        return str(yaml.dump(dict(content), Dumper=dumper, sort_keys=False, allow_unicode=True))

    if yaml.__with_libyaml__:
        with contextlib.suppress(UnicodeEncodeError):  # a file's name that is no UTF-8: PyYAML escapes it
            return dumped(yaml.CSafeDumper)
    return dumped(yaml.SafeDumper)


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


def outline(path: Path) -> Node | None:
    """Return the nodes of a YAML file with their lines and columns; None if it is empty.

    Raises:
        ConfigError: If it cannot be read, or is not YAML.
    """
    try:
        return _OnceLoaderOfMethods(_text(path)).get_single_node()
    except (ValueError, yaml.YAMLError):
        raise ConfigError(f"{path}: cannot be read as YAML") from None


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
