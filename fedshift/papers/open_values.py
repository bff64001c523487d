"""Where a paper leaves a value open, and where it prints another one than our experiment has (conf/papers).

``readings`` names settings of which the paper says nothing, contradicts itself, or is lost in the text at hand: what
the experiment file has there is a reading of ours, not the paper's. ``prints`` has the printed value of settings of
which the experiment file has another one.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any

from pydantic import BaseModel, Field

from clients.modules.catalog import MODULES
from fedshift_app.config import dotted_keys, registry
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found
from fedshift_core.registry import imported
from fedshift_core.spelling import meant

#: ``METHOD.*``: all of a method's own parameters, and what it asks for of other sections.
ALL = "*"
LEAST_WHY = 12  # characters of a sentence


class Printed(BaseModel, frozen=True, extra="forbid"):
    """A value that the paper prints where our experiment has another one."""

    value: Any
    why: str = Field(min_length=LEAST_WHY)


def check(keys: Iterable[str], section: str) -> None:
    """Look whether settings exist, each a dotted key or METHOD.KEY.

    Args:
        keys: What the file has.
        section: Where it has them.

    Raises:
        ConfigError: With the first that does not.
    """
    for key in keys:
        known = _known(key)
        if key not in known:
            raise ConfigError(
                f"{section}: unknown key {as_found(key)}; allowed are dotted keys of a configuration, METHOD.KEY and "
                f"METHOD.{ALL}{meant(key, known)}"
            )


def why_open(readings: Mapping[str, str], key: str, method: str, asks: Container[str]) -> str:
    """Return why the value of a setting is a reading of ours; empty where the paper has it.

    Args:
        readings: What a file of conf/papers says.
        key: The setting's dotted key.
        method: The method of the row.
        asks: The dotted keys of other sections that it asks for.
    """
    own = key.startswith("method.") and key != "method.name"
    named = readings.get(f"{method}.{key.removeprefix('method.')}", "") if own else readings.get(key, "")
    return named or (readings.get(f"{method}.{ALL}", "") if own or key in asks else "")


def printed_for(prints: Mapping[str, Printed], method: str) -> dict[str, Any]:
    """Return by dotted key what the paper prints of a row's method."""
    return {
        f"method.{key.removeprefix(f'{method}.')}" if key.startswith(f"{method}.") else key: printed.value
        for key, printed in prints.items()
    }


def _known(key: str) -> list[str]:
    """Return the keys that there are where one is looked for: of a method, of modules, or of all sections."""
    first, _, rest = key.partition(".")
    if first in registry.METHODS:
        return [f"{first}.{ALL}", *(f"{first}.{own}" for own in registry.get(first).known_keys())]
    name = rest.partition(".")[0]
    if first == "modules" and name in MODULES:
        return [f"modules.{name}.{own}" for own in imported(MODULES[name].modules).params_model.model_fields]
    return list(dotted_keys.known())
