"""Finds runs on disk: run folders, folders that hold some, and results files kept with their configuration."""

from collections.abc import Sequence
from pathlib import Path

from fedshift_app.run.files import CONFIG_FILE, RESULTS_FILE, read_json
from fedshift_core.errors import ConfigError
from fedshift_core.paths import user_path
from fedshift_datasets.io import looks

KEPT_SUFFIX = ".json"  # of a run in one file
_REMEMBERED = 1 << 14  # files that were looked into, which a board does several times


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


def with_inner(paths: Sequence[Path]) -> list[Path]:
    """Return the paths, and of a folder its folders that hold runs, such as those of sweeps; alone if it holds none."""
    places = []
    for path in map(user_path, paths):
        own = held(path) if path.is_dir() else [path]
        below = sorted(path.iterdir()) if own != [path] else []
        inner = [folder for folder in below if folder.is_dir() and held(folder) not in ([], [folder])]
        places += [path, *inner] if own or not inner else inner
    return places


@looks.remembered(_REMEMBERED)
def _kept(path: Path) -> bool | None:
    """Return whether a file is a ``results.json`` kept with its configuration; None if it cannot be read as JSON."""
    if path.suffix != KEPT_SUFFIX or not path.is_file():
        return False
    try:
        content = read_json(path)
    except ConfigError:
        return None
    return isinstance(content, dict) and {"config", "domains"} <= content.keys()
