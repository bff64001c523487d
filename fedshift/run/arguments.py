"""Checks arguments whose type a command reads from its words, and a call gets as it is."""

from collections.abc import Iterable

from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found


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
