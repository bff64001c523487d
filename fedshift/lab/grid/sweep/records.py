"""The state of a sweep's runs: in memory, in ``sweep.json``, and in the run folders."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import typer

from fedshift.lab.grid.sweep import grid
from fedshift.lab.grid.sweep.children import Attempt
from fedshift.lab.grid.sweep.grid import Point
from fedshift.lab.grid.sweep.progress import Timed
from fedshift_app.config import plugins
from fedshift_app.config.sections import RunConfig
from fedshift_app.config.validating import sections_of_run, validate
from fedshift_app.node import data as node_data
from fedshift_app.run import agreement, checkpoints, config_file, resuming
from fedshift_app.run.files import RESULTS_FILE
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.limits import as_found, some
from fedshift_core.wire.names import DEPLOYMENT
from fedshift_core.yaml_files import read_yaml
from fedshift_datasets.io import looks

SWEEP_FILE = "sweep.json"
MOST_PARTS = 4  # domains and splits that a message names

State = Literal["waiting", "running", "finished", "failed"]


@dataclass
class Record:
    """The state of a run of the grid.

    Attributes:
        point: The run.
        place: The folder that holds its run folders.
        log: What it prints.
        child: It, in progress.
        workers: How many processes play its nodes.
        state: Its state.
        folder: Its run folder, once there is one.
        seconds: The time of all attempts together.
        attempts: How often it was started.
        error: The last line of its last failure.
        failures: How often it failed in this process.
        refused: Run folders that cannot be continued.
        reused: It was finished by somebody else.
        other_images: Folders of finished runs on other images than those of today, which do not count.
    """

    point: Point
    place: Path
    log: Path
    child: Attempt | None = None
    workers: int = 1
    state: State = "waiting"
    folder: Path | None = None
    seconds: float = 0.0
    attempts: int = 0
    error: str | None = None
    failures: int = 0
    refused: set[Path] = field(default_factory=set)
    reused: bool = False
    other_images: set[Path] = field(default_factory=set)

    def results(self) -> dict[str, Any]:
        """Return the summary of a finished run.

        Raises:
            ConfigError: If it cannot be read.
        """
        assert self.folder is not None
        file = self.folder / RESULTS_FILE
        try:
            content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{file}: cannot be read as JSON: {error}") from None
        seconds, avg = (content.get("seconds"), content.get("avg")) if isinstance(content, dict) else (None, None)
        if not isinstance(seconds, int | float) or not isinstance(avg, int | float | None):
            raise ConfigError(f"{file}: it does not belong to a run: seconds {as_found(seconds)}, avg {as_found(avg)}")
        return content

    def saved(self, sweep_folder: Path) -> dict[str, Any]:
        """Return its entry in ``sweep.json``."""
        folder = self.folder
        return {
            "key": self.point.key,
            "label": self.point.label,
            "arguments": self.point.arguments,
            "state": self.state,
            # A sweep's folder may be moved with its runs.
            "folder": folder and (folder.name if folder.parent == sweep_folder else str(folder)),
            "reused": self.reused,
            "seconds": round(self.seconds, 3),
            "attempts": self.attempts,
            "error": self.error,
        }

    @property
    def timed(self) -> Timed:
        """Return its duration, for an estimate of the time left."""
        return Timed(self.point.config.method["name"], self.point.config.rounds, self.seconds)


class Images:
    """The images as they are now, read once for all runs that use the same ones."""

    def __init__(self) -> None:
        self._fingerprints: dict[object, dict[str, dict[str, str]]] = {}

    def changed(self, config: RunConfig, stored: Mapping[str, Any]) -> str:
        """Return the domains and splits of a run that had other images; empty if none had.

        Empty also for runs whose ``config.yaml`` holds no fingerprints: of an earlier version, and of real nodes.

        Args:
            config: The run's configuration.
            stored: The content of its ``config.yaml``.

        Raises:
            DataError: If the images cannot be read.
        """
        if stored.get("images") is None or stored["engine"] == DEPLOYMENT:
            return ""
        key = (config.dataset, tuple(node_data.read_parts(config)))
        if key not in self._fingerprints:
            with looks.handed_on():
                self._fingerprints[key] = node_data.fingerprints(config)
        return some(resuming.changed_images(stored["images"], self._fingerprints[key]), MOST_PARTS)


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return attempts and seconds of each run by its key, from ``sweep.json``."""
    file = folder / SWEEP_FILE
    if not file.exists():
        return {}
    try:
        points = json.loads(file.read_text(encoding="utf-8"))["points"]
        return {
            str(point["key"]): {"attempts": int(point["attempts"]), "seconds": float(point["seconds"])}
            for point in points
        }  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        typer.echo(f"{file} is damaged: earlier attempts and times are lost, but not the runs", err=True)
        return {}


def read_run(file: Path) -> tuple[str, dict[str, Any]] | None:
    """Return the key of the point and the content of a ``config.yaml``; None for runs of other versions.

    None also for a run that scores another run's models (``fedshift rescore``), which has only the last round.
    """
    try:
        content = read_yaml(file)
        config_file.check(content, str(file), ("resolved", "nodes"))
        if "scored_again" in content:
            return None
        config = validate(sections_of_run({"resolved": content["resolved"]}))
        if plugins.located(content, file) != list(config.plugins):
            raise ConfigError(f"plugins: {some(config.plugins, MOST_PARTS)} changed since it ran")
        if changed := agreement.edited(file.parent, content):
            raise ConfigError(changed)
        return grid.identity(config, content["nodes"]), content
    except FedShiftError as error:
        typer.echo(f"{file} is left out: {error}", err=True)
        return None


def progress(folder: Path) -> tuple[int, str]:
    """Order run folders by their last full round, then by time."""
    return max(checkpoints.rounds(folder / checkpoints.FOLDER), default=0), folder.name
