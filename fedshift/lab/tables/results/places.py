"""Finds runs on disk: run folders, folders that hold some, and results files kept with their configuration."""

from pathlib import Path

from fedshift_app.run.files import CONFIG_FILE, RESULTS_FILE, read_json
from fedshift_core.errors import ConfigError

KEPT_SUFFIX = ".json"  # of a run in one file


def named_by(path: Path) -> list[Path]:
    """Return the run folders and results files that a path stands for.

    Raises:
        ConfigError: If there are none, or the path is no run.
    """
    if path.is_file():
        if path.suffix != KEPT_SUFFIX:
            raise ConfigError(
                f"{path} is no run: name run folders, folders that hold some, or files that --keep wrote (.json)"
            )
        return [path.parent if path.name == RESULTS_FILE and (path.parent / CONFIG_FILE).is_file() else path]
    if not path.is_dir():
        raise ConfigError(f"there is no file or folder {path}")
    places = held(path)
    if not places:
        raise ConfigError(
            f"{path} is not a run folder and holds none: no {CONFIG_FILE}, no results with their config; name the "
            "folders in it that hold runs"
        )
    return places


def held(folder: Path) -> list[Path]:
    """Return the folder if it is a run folder, otherwise the run folders and results files in it.

    A .json file that cannot be read is among them: it may be a truncated results file, which ``read`` names.
    """
    if (folder / CONFIG_FILE).is_file():
        return [folder]
    return [inner for inner in sorted(folder.iterdir()) if (inner / CONFIG_FILE).is_file() or _kept(inner) is not False]


def finished(place: Path) -> bool:
    """Return whether a run folder has results; a results file has."""
    return place.is_file() or (place / RESULTS_FILE).is_file()


def with_inner(path: Path) -> list[Path]:
    """Return a folder that holds runs, and its folders that do, such as those of sweeps."""
    if not path.is_dir() or held(path) == [path]:
        return [path]
    inner = [sub for sub in sorted(path.iterdir()) if sub.is_dir() and held(sub) not in ([], [sub])]
    return [*([path] if held(path) or not inner else []), *inner]


def _kept(path: Path) -> bool | None:
    """Return whether a file is a ``results.json`` kept with its configuration; None if it cannot be read as JSON."""
    if path.suffix != KEPT_SUFFIX or not path.is_file():
        return False
    try:
        content = read_json(path)
    except ConfigError:
        return None
    return isinstance(content, dict) and {"config", "domains"} <= content.keys()
