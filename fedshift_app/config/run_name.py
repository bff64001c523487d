"""The name that a user gives a run: its folder in output-dir."""

import re
from typing import Any

from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found

KEY = "name"
MOST = 100  # characters
_ALLOWED = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{MOST - 1}}}")


def check(name: Any) -> None:
    """Refuse what cannot be a run's name on every machine.

    Args:
        name: The value of the key; empty for a name made of experiment, method, seed and time.

    Raises:
        ConfigError: With what is allowed.
    """
    if name and (not isinstance(name, str) or not _ALLOWED.fullmatch(name)):
        raise ConfigError(
            f"{KEY}: {as_found(name)} cannot be a run's name: expected at most {MOST} letters, digits, '-', '_' and "
            "'.', the first of them a letter, a digit or '_'"
        )
