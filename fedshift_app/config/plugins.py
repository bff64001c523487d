"""Runs a user's own Python files: ``plugins: [my_method.py]`` in an experiment file, and classes of a notebook.

They run only in simulation and with engine=inline, and only if the process's own environment names them
(``FEDSHIFT_PLUGINS``), which the command that starts a run sets. A server's message never makes a node run a file.
"""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clients.models.catalog import NETWORKS
from datasets import catalog
from fedshift_app.config import registry
from fedshift_app.config.sections import RunConfig
from fedshift_core import extensions
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import OURS
from fedshift_core.limits import MOST_NAME, as_found, shown
from fedshift_core.paths import user_path

#: Environment variable: the files that this process may run, separated as in PATH.
ALLOWED = "FEDSHIFT_PLUGINS"


def take_files(experiment: dict[str, Any], path: Path) -> None:
    """Run the files of an experiment's ``plugins``, and allow them for child processes.

    Args:
        experiment: The content of the experiment, which gets the files' absolute paths.
        path: The experiment's file: relative paths start in its folder.

    Raises:
        ConfigError: If a file cannot be read or run, or defines nothing.
    """
    section = experiment.get("resolved") if isinstance(experiment.get("resolved"), dict) else experiment
    assert section is not None
    given = section.get("plugins")
    if given is None:
        return
    files = [str(user_path(file, "plugins", path.parent)) for file in _listed(given)]
    os.environ[ALLOWED] = os.pathsep.join(dict.fromkeys([*_allowed(), *files]))
    for file in files:
        extensions.load_file(Path(file))
    section["plugins"] = files


def take_set(experiment: dict[str, Any], overrides: dict[str, Any]) -> None:
    """Add the files of an override ``plugins`` to those of an experiment, if this process's environment allows them.

    Args:
        experiment: The content of the experiment, which gets the files.
        overrides: The dotted overrides, which lose the key.

    Raises:
        ConfigError: As :func:`allow`.
    """
    if (given := overrides.pop("plugins", None)) is None:
        return
    allow(given)
    section = experiment["resolved"] if isinstance(experiment.get("resolved"), dict) else experiment
    section["plugins"] = list(dict.fromkeys([*(section.get("plugins") or ()), *given]))


def permit(file: Path) -> None:
    """Let this process, and what it starts, run a file."""
    os.environ[ALLOWED] = os.pathsep.join(dict.fromkeys([*_allowed(), str(file)]))


def allow(given: Any) -> None:
    """Run the files of a configuration that this process's environment allows.

    Args:
        given: The key ``plugins``.

    Raises:
        ConfigError: If the environment does not allow a file, or ``given`` is not a list of files.
    """
    for file in _listed(given):
        if file not in _allowed():
            raise ConfigError(
                f"plugins: {shown(file, MOST_NAME)} is not run here. A file works in simulation only, started by "
                "`fedshift run` or `sweep`; SuperNodes and servers need it as an installed package "
                "(docs/guide/own-method.md)",
                remedy=f"for another command set {ALLOWED}={shlex.quote(os.pathsep.join(_listed(given)))}",
            )
        extensions.load_file(Path(file))


def _listed(given: Any) -> Sequence[str]:
    if not isinstance(given, list | tuple) or not all(isinstance(file, str) for file in given):
        raise ConfigError(f"plugins: expected a list of Python files, found {as_found(given)}")
    return given


def brought(config: RunConfig) -> dict[str, str]:
    """Return the versions of packages, and the start of the SHA-256 of files, that extend FedShift in a run."""
    used: list[tuple[extensions.Registry[Any], str]] = [
        (registry.METHODS, config.method["name"]),
        (catalog.DATASETS, config.dataset.kind),
        *((NETWORKS, name) for name in (config.model.name, *config.model.per_node)),
        *((registry.MODULES, entry["name"]) for entry in config.modules),
        *((registry.FEATURES, entry["name"]) for entry in config.features),
    ]
    if config.adapt["name"] != registry.NONE:
        used.append((registry.ADAPTATIONS, config.adapt["name"]))
    origins = [kind.origin(name) for kind, name in used]
    packages = dict(origin.split(" ", 1) for origin in origins if origin != OURS and origin not in config.plugins)
    return packages | {f"plugin {Path(file).name}": extensions.file_digest(Path(file)) for file in config.plugins}


def _allowed() -> list[str]:
    return [file for file in os.environ.get(ALLOWED, "").split(os.pathsep) if file]
