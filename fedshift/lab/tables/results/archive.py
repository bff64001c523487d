"""``fedshift compare --keep``: one small file per run, without weights or local paths."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from fedshift.lab.tables.results import loading
from fedshift.lab.tables.results.loading import Run
from fedshift_app.run import shown
from fedshift_app.run.files import AVERAGED_OVER, CONFIG_FILE, RESULTS_FILE, read_json
from fedshift_clients.models.packages import PREFIX
from fedshift_core.atomic_io import write_atomically
from fedshift_core.errors import ConfigError
from fedshift_core.registry import imported
from fedshift_core.yaml_files import read_yaml

#: Keys of ``config.yaml`` that describe how a result was made. The typed command is left out: it has local paths.
_CONFIG_KEYS = ("resolved", "asked", "engine", "arithmetic", "git", "versions", "images", "started", "scored_again")
#: The folder of the images, which is left out, and settings that name files, of which the names alone are kept.
_FOLDER = "dataset.data_dir"
_FILES = ("model.weights", "plugins")


def keep(paths: Sequence[Path], folder: Path) -> list[Path]:
    """Write each finished run as one JSON file that ``compare`` reads: ``results.json`` with ``config.yaml`` in it.

    Args:
        paths: As for ``loading.read``.
        folder: The target folder, which is created. A file of the same run is overwritten.

    Returns:
        The files, each named after its run's folder.

    Raises:
        ConfigError: As for ``loading.read``; if two runs have the same name, or a file cannot be written.
    """
    finished = loading.read(paths).runs  # all were read before the first one is written
    files = [folder / f"{run.name}.json" for run in finished]
    if twice := sorted({file.stem for file in files if files.count(file) > 1}):
        raise ConfigError(f"--keep: two runs are named {', '.join(twice)}; keep them in folders of their own")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for run, file in zip(finished, files, strict=True):
            write_atomically(file, _as_lines(_content(run)))
    except OSError as error:
        raise ConfigError(f"--keep: cannot write into {folder}: {error.strerror}") from None
    return files


def _content(run: Run) -> dict[str, Any]:
    if run.place.is_file():
        kept: dict[str, Any] = read_json(run.place)
        return kept | {"config": _without_paths(kept["config"])}
    place = run.place
    config = read_yaml(place / CONFIG_FILE)
    kept_config = _without_paths({key: config[key] for key in _CONFIG_KEYS if key in config})
    results: dict[str, Any] = read_json(place / RESULTS_FILE)
    for feature in shown.features_of(run.resolved):
        if feature.section and feature.file in results:  # without what grows with the classes
            results[feature.file] = imported(feature.section).short(results[feature.file])
    by_round = {str(number): round(avg, 2) for number, avg in run.curve.items()}
    more: dict[str, Any] = {"curve": by_round} if by_round else {}
    if over := run.averaged_in("last5"):
        more[AVERAGED_OVER] = list(over)
    if run.contradiction:
        more[loading.CONTRADICTION] = run.contradiction
    return results | more | {"config": kept_config}


def _without_paths(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without local paths: no folder of images, and of each file its name alone."""
    resolved = {name: _section(name, value) for name, value in config["resolved"].items()}
    asked = {key: [_short(key, value) for value in both] for key, both in (config.get("asked") or {}).items()}
    return {**config, "resolved": resolved, **({"asked": asked} if asked else {})}


def _section(name: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return _short(name, value)
    keys = {key: key if name == "tuned" else f"{name}.{key}" for key in value}  # a search names keys in full
    return {key: _short(keys[key], inner) for key, inner in value.items() if keys[key] != _FOLDER}


def _short(key: str, value: Any) -> Any:
    """Return the value of a setting, of a file its name alone."""
    if key not in _FILES or not value:
        return value
    if isinstance(value, str):
        return value if value.startswith(PREFIX) else PurePath(value).name
    return [PurePath(file).name for file in value]


def _as_lines(content: dict[str, Any]) -> str:
    """Return JSON with one line per key, which reads well and differs by line."""
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    return f"{{\n{lines}\n}}\n"
