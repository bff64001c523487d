"""Values that a paper leaves open, and printed values that differ from our experiment (conf/papers).

``readings`` names settings that the paper does not state, states in contradictory ways, or whose text is lost. The
experiment file has our reading of them. ``prints`` has the printed values of settings for which the experiment file has
other values.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any

from pydantic import BaseModel, Field

from fedshift_app.config import dotted_keys, registry
from fedshift_clients.modules.catalog import MODULES
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found
from fedshift_core.registry import params_of
from fedshift_core.spelling import meant

#: ``METHOD.*``: all parameters of a method and all settings of other sections that it sets.
ALL = "*"
LEAST_WHY = 12  # characters of a sentence


class Printed(BaseModel, frozen=True, extra="forbid"):
    """A printed value that differs from that of our experiment."""

    value: Any
    why: str = Field(min_length=LEAST_WHY)


def check(keys: Iterable[str], section: str) -> None:
    """Check that settings exist, each a dotted key, METHOD.KEY or adapt.NAME.KEY.

    Args:
        keys: The keys in the file.
        section: Their place in the file, for the message.

    Raises:
        ConfigError: If a key does not exist; the message names the first.
    """
    for key in keys:
        known = _known(key)
        if key not in known:
            raise ConfigError(
                f"{section}: unknown key {as_found(key)}; allowed are dotted keys of a configuration, METHOD.KEY and "
                f"METHOD.{ALL}{meant(key, known)}"
            )


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


def _known(key: str) -> list[str]:
    """Return the known keys of the section to which a key belongs: a method, a module, an adaptation, or all."""
    first, _, rest = key.partition(".")
    if first in registry.METHODS:
        own_keys = registry.get(first).known_keys()
        return [f"{first}.{ALL}", *(f"{first}.{own}" for own in own_keys)]
    name = rest.partition(".")[0]
    if first == "modules" and name in MODULES:
        fields = params_of(MODULES[name].modules, MODULES[name].params).model_fields
        return [f"modules.{name}.{own}" for own in fields]
    if first == "adapt" and name in registry.ADAPTATIONS:
        params = registry.adapt_params({"name": name}).model_dump()
        return [f"adapt.{name}.{own}" for own in params]
    return list(dotted_keys.known())
