"""Runs as a person names them: folders, patterns such as ``runs/*``, runs, and lists of these."""

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found
from fedshift_core.paths import typed_path

Named = str | os.PathLike[str]


def listed(given: Named | Iterable[Named], of: str, what: str = "run") -> list[Path]:
    """Return paths, with patterns replaced by what they match, in order.

    Args:
        given: One, or several.
        of: The function that they are for, in messages.
        what: What they are, in messages.

    Raises:
        ConfigError: If a pattern matches nothing, nothing is given, or something else than paths.
    """
    if not isinstance(given, Iterable | os.PathLike):
        raise ConfigError(f"{of}: expected a path or several, found {as_found(given)}")
    paths = [
        path for each in ([given] if isinstance(given, str | os.PathLike) else given) for path in _matched(each, of)
    ]
    if not paths:
        raise ConfigError(f"{of}: no {what} is given")
    return paths


def _matched(given: Named, of: str) -> list[Path]:
    path = typed_path(given, of)
    if not glob.has_magic(str(path)) or path.exists():
        return [path]
    found = sorted(map(Path, glob.glob(str(path))))  # noqa: PTH207 (Path.glob refuses absolute patterns)
    if not found:
        raise ConfigError(f"{of}: nothing matches {as_found(str(given))}")
    return found
