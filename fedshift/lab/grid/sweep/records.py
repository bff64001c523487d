"""The state of a sweep's runs: in memory, in ``sweep.json``, and in the run folders."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import typer

from fedshift.lab.grid.sweep import grid
from fedshift.lab.grid.sweep.children import ATTEMPT, Attempt
from fedshift.lab.grid.sweep.grid import Point
from fedshift_app.config import plugins
from fedshift_app.config.sections import RunConfig
from fedshift_app.config.validating import sections_of_run, validate
from fedshift_app.node import data as node_data
from fedshift_app.run import agreement, checkpoints, config_file, files, resuming
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.limits import some
from fedshift_core.wire.names import DEPLOYMENT
from fedshift_core.yaml_files import read_yaml
from fedshift_datasets.io import looks

SWEEP_FILE = "sweep.json"
MOST_PARTS = 4  # domains and splits that a message names


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
        error: The last line of its last failure.
        failures: How often it failed in this process.
        left_out: Run folders that do not count: they cannot be continued, or are on other images than those of today.
        reused: It was finished by somebody else.
    """

    point: Point
    place: Path
    log: Path
    child: Attempt | None = None
    workers: int = 1
    state: Literal["waiting", "running", "finished", "failed"] = "waiting"
    folder: Path | None = None
    seconds: float = 0.0
    error: str | None = None
    failures: int = 0
    left_out: set[Path] = field(default_factory=set)
    reused: bool = False

    @property
    def attempts(self) -> int:
        """The number of its starts, by its log."""
        return self.log.read_bytes().count(ATTEMPT) if self.log.is_file() else 0

    def results(self) -> dict[str, Any]:
        """Return the summary of a finished run.

        Raises:
            ConfigError: If it cannot be read.
        """
        assert self.folder is not None
        return files.results(self.folder)

    def saved(self, sweep_folder: Path) -> dict[str, Any]:
        """Return its entry in ``sweep.json``."""
        entry = {name: getattr(self, name) for name in ("state", "reused", "attempts", "error")}
        folder = self.folder  # a sweep's folder may be moved with its runs
        return {
            "key": self.point.key,
            "label": self.point.label,
            "arguments": self.point.arguments,
            **entry,
            "folder": folder and (folder.name if folder.parent == sweep_folder else str(folder)),
            "seconds": round(self.seconds, 3),
        }

    @property
    def rounds(self) -> int:
        """Its rounds; a run without any, which only scores, counts as one."""
        return max(self.point.config.rounds, 1)


class Images:
    """The images as they are now, read once for all runs that use the same ones."""

    def __init__(self) -> None:
        self._fingerprints: dict[object, dict[str, dict[str, str]]] = {}

    def changed(self, config: RunConfig, stored: Mapping[str, Any]) -> str:
        """Return the domains and splits of a run that had other images; empty if none had, or none can be compared.

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


def read_run(file: Path) -> tuple[str, dict[str, Any]] | None:
    """Return the key of the point and the content of a ``config.yaml``; None for one that cannot be read.

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
