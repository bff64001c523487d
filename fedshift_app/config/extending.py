"""A user's own Python files: ``plugins: [my_method.py]`` in an experiment file.

They run in simulation and in engine=inline alone, and only where the process's own environment names them
(``FEDSHIFT_PLUGINS``): the command that starts a run sets it. What a server sends never makes a node run a file.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedshift_wire import extensions
from fedshift_wire.errors import ConfigError

#: Environment variable: files that this process may run, separated as in PATH.
ALLOWED = "FEDSHIFT_PLUGINS"


def take_files(experiment: dict[str, Any], path: Path) -> None:
    """Run the files of an experiment's ``plugins`` and allow them to the processes that this one starts.

    Args:
        experiment: Its content; the files' absolute paths are put in.
        path: Where it is: relative paths start there.

    Raises:
        ConfigError: If a file cannot be read or run, or brings nothing.
    """
    section = experiment.get("resolved") if isinstance(experiment.get("resolved"), dict) else experiment
    assert section is not None
    given = section.get("plugins")
    if given is None:
        return
    if not isinstance(given, list | tuple) or not all(isinstance(file, str) for file in given):
        raise ConfigError(f"plugins: expected a list of Python files, found {given!r}")
    files = [str((path.parent / Path(file).expanduser()).resolve()) for file in given]
    os.environ[ALLOWED] = os.pathsep.join(dict.fromkeys([*_allowed(), *files]))
    for file in files:
        extensions.load_file(Path(file))
    section["plugins"] = files


def allow(files: Sequence[str]) -> None:
    """Run the files of a configuration that came from elsewhere, if this process's environment names them.

    Raises:
        ConfigError: If it does not.
    """
    for file in files:
        if file not in _allowed():
            raise ConfigError(
                f"plugins: {file} is not run here: a file serves in simulation only, started by `fedshift run`; on "
                "SuperNodes and on the server install it as a package (docs/adding-a-method.md)"
            )
        extensions.load_file(Path(file))


def digests(files: Sequence[str]) -> Mapping[str, str]:
    """Return the start of each file's SHA-256, by its name."""
    return {f"plugin {Path(file).name}": extensions.file_digest(Path(file)) for file in files}


def _allowed() -> list[str]:
    return [file for file in os.environ.get(ALLOWED, "").split(os.pathsep) if file]
