"""Ranges from which a search chooses the value of a key.

``[LOW, HIGH]``, ``[LOW, HIGH, log]``, ``[LOW, HIGH, whole]`` or ``{values: [A, B, ...]}``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, is_number

MOST_VALUES = 100
LOG, WHOLE = "log", "whole"
_FORMS = "[LOW, HIGH], [LOW, HIGH, log], [LOW, HIGH, whole] or {values: [A, B, ...]}"


@dataclass(frozen=True)
class Range:
    """The values that a search may choose.

    Attributes:
        low: The lowest number.
        high: The highest number.
        log: Each power of ten is equally likely.
        whole: Only whole numbers.
        values: The values to choose from; empty for numbers.
    """

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    values: tuple[Any, ...] = ()

    def holds(self, value: Any) -> bool:
        """Return whether a value is in the range."""
        if self.values:
            return any(type(value) is type(allowed) and value == allowed for allowed in self.values)
        return is_number(value) and self.low <= value <= self.high and not (self.whole and value != int(value))

    def ends(self) -> tuple[Any, ...]:
        """Return the bounds of the range: a key that accepts them accepts all values between."""
        if self.values:
            return self.values
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)

    def as_yaml(self) -> Any:
        """Return the range in the form of YAML files."""
        if self.values:
            return {"values": list(self.values)}
        return [*self.ends(), *([LOG] if self.log else []), *([WHOLE] if self.whole else [])]


def read(stated: Any, key: str) -> Range:
    """Return the range that a file or a command line states.

    Args:
        stated: The range as stated.
        key: The key, for messages.

    Raises:
        ConfigError: If it has another form, or is empty.
    """
    error = ConfigError(f"{key}: {as_found(stated)} is not a range; allowed are {_FORMS}")
    if isinstance(stated, Mapping):
        values: Any = stated.get("values")
        listed = set(stated) == {"values"} and isinstance(values, list | tuple)
        if (
            not listed
            or not all(isinstance(value, bool | int | float | str) for value in values)
            or not 2 <= len(values) <= MOST_VALUES
        ):
            raise error
        if len({(type(value), value) for value in values}) != len(values):
            raise ConfigError(f"{key}: a value comes twice in {as_found(stated)}")
        return Range(values=tuple(values))
    if not isinstance(stated, Sequence) or isinstance(stated, str) or len(stated) not in (2, 3):
        raise error
    low, high, *kind = stated
    for end in (low, high):
        if not is_number(end) or not math.isfinite(end):
            raise error
    if kind and kind[0] not in (LOG, WHOLE):
        raise error
    result = Range(float(low), float(high), log=LOG in kind, whole=WHOLE in kind)
    if not low < high or (result.log and low <= 0) or (result.whole and (low != int(low) or high != int(high))):
        raise ConfigError(
            f"{key}: {as_found(stated)}: LOW must be below HIGH, above 0 with log, and both whole numbers with whole"
        )
    return result
