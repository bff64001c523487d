"""Options of a kind: keys that do something for some values of another key of their section alone (``For``).

They are written in one mapping, ``aggregation: {robust: {name: trimmed_mean, trim: 0.2}}``, or next to their kind,
``aggregation: {robust: trimmed_mean, trim: 0.2}``. A kind that is chosen anew takes the options of the former one away.
"""

import functools
from collections.abc import Mapping
from typing import Any

from fedshift_app.config.sections import MODELS, RunConfig
from fedshift_core.errors import ConfigError
from fedshift_core.features import said, typed
from fedshift_core.params import For
from fedshift_core.spelling import meant


class UnusedKeyError(ConfigError):
    """A key does nothing in a run.

    Attributes:
        key: The key.
        note: The reason for a note on a run that goes on without it.
    """

    def __init__(self, key: str, value: Any, found: str, needed: str) -> None:
        """Make the error.

        Args:
            key: The key.
            value: Its value.
            found: What switches it off.
            needed: What it needs.
        """
        text = f"{said(key, value)} does nothing with {found}; it needs {needed}"
        super().__init__(text, keys=(tuple(key.split(".")),))
        self.key, self.note = key, f"{key} is left out with {found}: it needs {needed}"


@functools.cache
def options(section: str) -> dict[str, For]:
    """Return the options of a section by key, each with its kind and the values for which it does something."""
    fields = MODELS[section].model_fields if section in MODELS else {}
    return {key: mark for key, field in fields.items() for mark in field.metadata if isinstance(mark, For)}


def kinds(section: str) -> set[str]:
    """Return the keys of a section that have options."""
    return {mark.key for mark in options(section).values()}


def is_default(key: tuple[str, ...], value: Any) -> bool:
    """Return whether a value of an option is its default: a file that lists all keys asks for nothing by it."""
    section, *rest = key
    if len(rest) != 1 or rest[0] not in options(section):
        return False
    return bool(MODELS[section].model_fields[rest[0]].default == value)


def check(section: str, key: str, config: RunConfig) -> None:
    """Refuse a key that does nothing in a run.

    Raises:
        UnusedKeyError: With what the key needs.
    """
    mark = options(section).get(key)
    if mark is None:
        return
    value, found = (getattr(getattr(config, section), name) for name in (key, mark.key))
    if value is not None and found not in mark.values:  # null asks for nothing
        kind = f"{section}.{mark.key}"
        needed = f"{kind}={' or '.join(map(typed, mark.values))}"
        raise UnusedKeyError(f"{section}.{key}", value, said(kind, found), needed)


def flat(section: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section with the options of each kind next to it.

    Raises:
        ConfigError: If a kind has no such option, or it stands in both places.
    """
    keys: dict[str, Any] = {}
    for key, value in content.items():
        if (
            key not in kinds(section) - {"name"}
            or not isinstance(value, Mapping)
            or not isinstance(value.get("name"), str | bool)
        ):
            keys[key] = value
            continue
        known = [name for name, mark in options(section).items() if mark.key == key and value["name"] in mark.values]
        for inner in value:
            if inner != "name" and (inner not in known or inner in content):
                problem = "comes twice" if inner in known else f"unknown; there are {', '.join(known) or 'none'}"
                raise ConfigError(
                    f"{section}.{key}.{inner} with name={typed(value['name'])}: {problem}{meant(inner, known)}",
                    keys=((section, key, inner),),
                )
        keys |= {key if inner == "name" else inner: part for inner, part in value.items()}
    return keys


def flat_key(dotted: str) -> str:
    """Return a typed key of an option, such as ``aggregation.robust.trim``, as the key next to its kind."""
    section, _, rest = dotted.partition(".")
    kind, _, key = rest.partition(".")
    mark = options(section).get(key)
    if mark is not None and mark.key == kind:
        return f"{section}.{key}"
    return f"{section}.{kind}" if key == "name" and kind in kinds(section) else dotted
