"""Values that a paper leaves open, and printed values that differ from our experiment (conf/papers).

``readings`` names settings that the paper does not state, states in contradictory ways, or whose text is lost. The
experiment file has our reading of them. ``prints`` has the printed values of settings for which the experiment file has
other values.
"""

from collections.abc import Container, Mapping
from typing import Any

from pydantic import BaseModel, Field

#: ``METHOD.*``: all parameters of a method and all settings of other sections that it sets.
ALL = "*"
LEAST_WHY = 12  # characters of a sentence


class Printed(BaseModel, frozen=True, extra="forbid"):
    """A printed value that differs from that of our experiment."""

    value: Any
    why: str = Field(min_length=LEAST_WHY)


def why_open(readings: Mapping[str, str], key: str, method: str, asks: Container[str], adaptation: str) -> str:
    """Return why the value of a setting is our reading; empty if the paper states it.

    Args:
        readings: The readings of a file of conf/papers.
        key: The setting's dotted key.
        method: The method of the row.
        asks: The dotted keys of other sections that it sets.
        adaptation: The adaptation of the row, or ``none``.
    """
    own = key.startswith("method.") and key != "method.name"
    named = readings.get(f"{method}.{key.removeprefix('method.')}", "") if own else readings.get(key, "")
    if key.startswith("adapt."):
        named = named or readings.get(f"adapt.{adaptation}.{key.removeprefix('adapt.')}", "")
    return named or (readings.get(f"{method}.{ALL}", "") if own or key in asks else "")


def printed_for(prints: Mapping[str, Printed], method: str) -> dict[str, Any]:
    """Return the printed values of a row's method by dotted key."""
    return {
        f"method.{key.removeprefix(f'{method}.')}" if key.startswith(f"{method}.") else key: printed.value
        for key, printed in prints.items()
    }
