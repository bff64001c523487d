"""Runs a user's own Python files: ``plugins: [my_method.py]`` in an experiment file, and classes of a notebook.

They run only in simulation and with engine=inline, and only if the process's own environment names them
(``FEDSHIFT_PLUGINS``), which the command that starts a run sets. A server's message never makes a node run a file.

A run folder keeps a copy of each file. It is somebody else's code where the folder was handed on, so that it runs only
if the user says so (``--trust-plugins``); a file that is still where it was, with the same content, is the user's own.
"""

import hashlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedshift_app.config import registry
from fedshift_app.config.sections import RunConfig
from fedshift_clients.models.catalog import NETWORKS
from fedshift_core import carried, extensions
from fedshift_core.atomic_io import write_durably
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_NAME, as_found, shown
from fedshift_core.paths import user_path
from fedshift_core.yaml_files import read_yaml
from fedshift_datasets import catalog

#: Environment variable: the files that this process may run, separated as in PATH.
ALLOWED = "FEDSHIFT_PLUGINS"
KEPT = "plugins"  # key of ``config.yaml``: the copies in the run folder
_ENTRY = ("path", "file", "sha256")  # what it records of each


def take_files(experiment: dict[str, Any], path: Path) -> None:
    """Run the files of an experiment's ``plugins``, and allow them for child processes.

    Args:
        experiment: The content of the experiment, which gets the files' absolute paths.
        path: The experiment's file: relative paths start in its folder.

    Raises:
        ConfigError: If a file cannot be read or run, or defines nothing.
    """
    section = experiment.get("resolved")
    if isinstance(section, dict):
        section["plugins"] = files = located(experiment, path)
        for file in _of_folder(files, path):
            if str(file) not in _allowed():
                raise ConfigError(
                    f"plugins: {shown(path)} would run code from its folder, {shown(file)}: the file that its run used "
                    "is not here, or is another one now",
                    remedy="read that code; to run it, add --trust-plugins to fedshift run, or set "
                    f"{ALLOWED}={shlex.quote(os.pathsep.join(files))}",
                )
    elif experiment.get("plugins") is not None:
        files = [str(user_path(file, "plugins", path.parent)) for file in _listed(experiment["plugins"])]
        experiment["plugins"] = files
    else:
        return
    for file in map(Path, files):
        permit(file)
        extensions.load_file(file)


def located(recorded: Mapping[str, Any], path: Path) -> list[str]:
    """Return the files of a run: each where it was, or its copy in the run folder if another one is there by now.

    Args:
        recorded: The content of its ``config.yaml``.
        path: That file.

    Raises:
        ConfigError: If a copy is missing, outside of the folder, or not what the run used.
    """
    copies = {entry["path"]: entry for entry in _kept(recorded, path)}
    files = []
    for file in _listed(recorded["resolved"].get("plugins") or ()):
        original, entry = user_path(file, "plugins", path.parent), copies.get(file)
        if entry is None and not Path(file).is_absolute():  # with none it is of a notebook
            raise ConfigError(f"plugins: {shown(path)} is of a run and names {as_found(file)}, not an absolute path")
        if entry is not None and (_of_folder([original], path) or sha256(original) != entry["sha256"]):
            original = path.parent.resolve() / entry["file"]
            if not _of_folder([original], path) or sha256(original) != entry["sha256"]:
                folder = shown(path.parent)
                raise ConfigError(f"plugins: {shown(original)} is not the file that the run in {folder} used")
        files.append(str(original))
    return files


def _kept(recorded: Mapping[str, Any], path: Path) -> list[dict[str, str]]:
    """Return the recorded copies."""
    entries = recorded.get(KEPT) or []
    for entry in entries if isinstance(entries, list) else [entries]:
        if not isinstance(entry, Mapping) or not all(isinstance(entry.get(key), str) for key in _ENTRY):
            raise ConfigError(f"{shown(path)}: {KEPT}: expected a list of {', '.join(_ENTRY)}, found {as_found(entry)}")
    return list(entries)


def _of_folder(files: Sequence[str | Path], path: Path) -> list[Path]:
    """Return the files that are in the folder of another one."""
    return [Path(file) for file in files if Path(file).resolve().is_relative_to(path.parent.resolve())]


def trust(flat: Mapping[str, Any]) -> list[Path]:
    """Let this process, and what it starts, run the code in a run folder; return the files, for a line about them.

    Args:
        flat: The keys of the command: its experiment is the ``config.yaml`` of a run, or ``resume`` its folder.

    Raises:
        ConfigError: If it is not one, or as :func:`located`.
    """
    path = Path(flat["resume"], "config.yaml") if flat.get("resume") else Path(flat.get("experiment", ""))
    recorded = read_yaml(path) if path.is_file() else {}
    if not isinstance(recorded.get("resolved"), Mapping):
        raise ConfigError("--trust-plugins: this goes with FOLDER/config.yaml or resume=FOLDER, of a run")
    files = _of_folder(located(recorded, path), path)
    for file in files:
        permit(file)
    return files


def keep(config: RunConfig, folder: Path) -> list[dict[str, str]]:
    """Copy a run's own Python files into its folder; return what ``config.yaml`` records of them.

    Raises:
        ConfigError: If a file is not what this process has run.
        DiskError: If a copy cannot be written.
    """
    kept = []
    for file in map(Path, config.plugins):
        if file.suffix == carried.SUFFIX:  # of a notebook: a pickle, for processes of this user alone
            continue
        content = file.read_bytes()
        if carried.digest(content) != (digest := extensions.file_digest(file)):
            raise ConfigError(f"plugins: {shown(file)} was edited while the run began; start it again")
        name = Path("plugins") / digest / file.name
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_durably(folder / name, content)
        kept.append(dict(zip(_ENTRY, (str(file), str(name), hashlib.sha256(content).hexdigest()), strict=True)))
    return kept


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file; empty if it cannot be read."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def take_set(experiment: dict[str, Any], overrides: dict[str, Any]) -> None:
    """Add the files of an override ``plugins`` to those of an experiment, if this process's environment allows them.

    Args:
        experiment: The content of the experiment, which gets the files.
        overrides: The dotted overrides, which lose the key.

    Raises:
        ConfigError: As :func:`allow`.
    """
    if (given := overrides.pop("plugins", None)) is not None:
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
                remedy=f"for another command set {ALLOWED}={shlex.quote(os.pathsep.join(given))}",
            )
        extensions.load_file(Path(file))


def _listed(given: Any) -> Sequence[str]:
    if not isinstance(given, list | tuple) or not all(isinstance(file, str) for file in given):
        raise ConfigError(f"plugins: expected a list of Python files, found {as_found(given)}")
    return given


def _allowed() -> list[str]:
    return [file for file in os.environ.get(ALLOWED, "").split(os.pathsep) if file]


def code(recorded: Mapping[str, Any]) -> list[str]:
    """Return the SHA-256 of a run's own Python files, as its ``config.yaml`` records them."""
    return [entry["sha256"] for entry in _kept(recorded, Path("config.yaml"))]


def used(config: RunConfig) -> bool:
    """Tell whether a run's own Python files define a name in it, which nothing else here does."""
    files = config.plugins
    return bool(files) and any(name not in kind or kind.origin(name) in files for kind, name in things(config))


def things(config: RunConfig) -> Iterator[tuple[extensions.Registry[Any], str]]:
    """Yield the names in a configuration that a package or a file may define, each with its registry."""
    yield registry.METHODS, config.method["name"]
    yield catalog.DATASETS, config.dataset.kind
    yield from ((NETWORKS, name) for name in config.model.names)
    yield from ((registry.MODULES, entry["name"]) for entry in config.modules)
    yield from ((registry.FEATURES, entry["name"]) for entry in config.features)
    if (name := config.adapt.get("name", registry.NONE)) != registry.NONE:
        yield registry.ADAPTATIONS, name


def brought(config: RunConfig) -> dict[str, str]:
    """Return what extends FedShift in a run, each with the start of the SHA-256 of its code: packages and files."""
    packages = {}
    for kind, name in things(config):
        origin = kind.origin(name)
        if origin != extensions.OURS and origin not in config.plugins:
            package, version = origin.split(" ", 1)
            packages[package] = ", ".join(filter(None, [version, kind.package_digest(name)]))
    return packages | {f"plugin {Path(file).name}": extensions.file_digest(Path(file)) for file in config.plugins}
