"""What a search may choose a key's value from.

``[LOW, HIGH]``, ``[LOW, HIGH, log]``, ``[LOW, HIGH, whole]`` or ``{values: [A, B, ...]}``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found

MOST_VALUES = 100
LOG, WHOLE = "log", "whole"
_FORMS = "[LOW, HIGH], [LOW, HIGH, log], [LOW, HIGH, whole] or {values: [A, B, ...]}"


@dataclass(frozen=True)
class Range:
    """Where a search looks for a value.

    Attributes:
        low: The lowest, of numbers.
        high: The highest, of numbers.
        log: Each power of ten is as likely as the next.
        whole: Whole numbers alone.
        values: What is chosen from instead; empty for numbers.
    """

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    values: tuple[Any, ...] = ()

    def holds(self, value: Any) -> bool:
        """Tell whether a value is in it."""
        if self.values:
            return any(type(value) is type(one) and value == one for one in self.values)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.low <= value <= self.high and not (self.whole and value != int(value))

    def ends(self) -> tuple[Any, ...]:
        """Return the values that bound it: if a key takes these, it takes all."""
        if self.values:
            return self.values
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)

    def told(self) -> Any:
        """Return it as YAML has it."""
        if self.values:
            return {"values": list(self.values)}
        return [*self.ends(), *([LOG] if self.log else []), *([WHOLE] if self.whole else [])]


def read(told: Any, key: str) -> Range:
    """Return the range that a file or a command line states.

    Args:
        told: What it says.
        key: Names it in a mistake.

    Raises:
        ConfigError: If it is of another form, or holds nothing.
    """
    wrong = ConfigError(f"{key}: {as_found(told)} is no range; allowed are {_FORMS}")
    if isinstance(told, Mapping):
        values: Any = told.get("values")
        listed = set(told) == {"values"} and isinstance(values, list | tuple)
        if (
            not listed
            or not all(isinstance(one, bool | int | float | str) for one in values)
            or not 2 <= len(values) <= MOST_VALUES
        ):
            raise wrong
        if len({(type(one), one) for one in values}) != len(values):
            raise ConfigError(f"{key}: a value comes twice in {as_found(told)}")
        return Range(values=tuple(values))
    if not isinstance(told, Sequence) or isinstance(told, str) or len(told) not in (2, 3):
        raise wrong
    low, high, *kind = told
    for end in (low, high):
        if isinstance(end, bool) or not isinstance(end, int | float) or not math.isfinite(end):
            raise wrong
    if kind and kind[0] not in (LOG, WHOLE):
        raise wrong
    found = Range(float(low), float(high), log=LOG in kind, whole=WHOLE in kind)
    if not low < high or (found.log and low <= 0) or (found.whole and (low != int(low) or high != int(high))):
        raise ConfigError(
            f"{key}: {as_found(told)}: LOW must be below HIGH, above 0 with log, and both whole numbers with whole"
        )
    return found
