"""A run folder as an object."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedshift.export import save as save_model
from fedshift.run import frames
from fedshift_app.run import config_file, files
from fedshift_app.run.files import CONFIG_FILE, METRICS_FILE, RESULTS_FILE, full_lines
from fedshift_app.run.logs import LOG_FILE
from fedshift_core.accuracies import percent
from fedshift_core.errors import ConfigError
from fedshift_core.losses import Losses
from fedshift_core.paths import user_path
from fedshift_core.yaml_files import read_yaml

if TYPE_CHECKING:
    import pandas as pd

    from fedshift.api.model import Model

Domains = Mapping[str, float | None]
#: Names of the forms of a saved model (``fedshift.export.forms``).
Form = Literal["safetensors", "torchscript", "onnx", "exported"]


@dataclass(frozen=True)
class Results:
    """What a finished run came to; accuracies are in percent, None where no node could tell.

    Attributes:
        method: The name of the method.
        experiment: That of the experiment.
        dataset: That of the data set.
        seed: The seed.
        engine: The engine that it ended on.
        evaluated: Which models were scored.
        rounds: The number of rounds.
        domains: Accuracy by domain, the mean of the last rounds (``averaged_rounds`` of ``values``).
        avg: Its average over the domains.
        std: Its standard deviation over the domains; like ``avg`` and ``worst`` None if a domain lacks a score.
        worst: That of the worst domain.
        worst_domain: Its name; None if none is known.
        losses: A sentence for each part that the run went without; empty if it is complete.
        final: Accuracy by domain in the last round.
        seconds: The time of the run.
        bytes_up: Bytes that nodes sent in all rounds.
        bytes_down: Bytes that they were sent.
        num_parameters: Numbers in the shared weights.
        weights_sha256: The hash of the last shared weights; equal hashes mean equal bits.
        values: All of ``results.json``, with further scores and notes.
    """

    method: str
    experiment: str
    dataset: str
    seed: int
    engine: str
    evaluated: str
    rounds: int
    domains: Domains
    avg: float | None
    std: float | None
    worst: float | None
    worst_domain: str | None
    final: Domains
    seconds: float
    bytes_up: int
    bytes_down: int
    num_parameters: int
    weights_sha256: str
    losses: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(repr=False, default_factory=dict)


class Run:
    """A run, finished or not, in its folder.

    Attributes:
        folder: The run folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Open a run folder.

        Raises:
            ConfigError: If it is none.
        """
        self.folder = user_path(folder, "load")
        if not (self.folder / CONFIG_FILE).is_file():
            raise ConfigError(f"load: {self.folder} is not the folder of a run: it has no {CONFIG_FILE}")

    def __fspath__(self) -> str:
        """Return the folder, so that a run stands wherever a path does."""
        return str(self.folder)

    def __repr__(self) -> str:
        """Return what it is, how it stands and what it came to, in a line."""
        try:
            about = f"{self.state}, average {percent(self.results.avg)} %" if self.finished else self.state
        except ConfigError as error:
            about = str(error)
        place = self.folder.relative_to(Path.cwd()) if self.folder.is_relative_to(Path.cwd()) else self.folder
        return f"Run({str(place)!r}: {about})"

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    @property
    def finished(self) -> bool:
        """Whether it has ended with results."""
        return (self.folder / RESULTS_FILE).is_file()

    @property
    def status(self) -> dict[str, Any]:
        """How it stands, as `fedshift status --json` shows it.

        Raises:
            ConfigError: If no status can be read.
        """
        from fedshift_app.run import status

        return status.read(self.folder).model_dump(mode="json")

    @property
    def state(self) -> str:
        """Its state: ``completed``, ``degraded`` (``results.losses``), ``failed``, ``interrupted``, or in progress."""
        return str(self.status["state"])

    @property
    def config(self) -> dict[str, Any]:
        """All settings of the run by section, with every default (``resolved`` of ``config.yaml``).

        Raises:
            ConfigError: If the file is not one of a run.
        """
        recorded = read_yaml(self.folder / CONFIG_FILE)
        config_file.check(recorded, f"load: {self.folder / CONFIG_FILE}", ("resolved",))
        return dict(recorded["resolved"])

    @property
    def results(self) -> Results:
        """What the run came to.

        Raises:
            ConfigError: If it is not finished, or its results are not those of a run.
        """
        if not self.finished:
            raise ConfigError(f"{self.folder}: the run is not finished; it goes on with: fedshift.run(resume=...)")
        try:
            values = files.results(self.folder)
            losses = Losses.of(values)
            overall = asdict(losses.overall(values["domains"])) | {"losses": tuple(losses.lines()), "values": values}
            names = [entry.name for entry in fields(Results) if entry.name not in overall]
            return Results(**{name: values[name] for name in names}, **overall)
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{self.folder / RESULTS_FILE}: it does not belong to a run: {error}") from None

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``, one per full round."""
        return full_lines(self.folder / METRICS_FILE)

    @property
    def metrics(self) -> "pd.DataFrame":
        """The rounds as a data frame, one row a round and domain."""
        return frames.metrics(self.rounds)

    def log(self) -> list[str]:
        """Return the run's log, a line each: time in UTC, level, message."""
        file = self.folder / LOG_FILE
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
        return [text for line in lines for text in _log_lines(line)]

    def report(self, *, data_dir: str | Path | None = None, images: int | Literal["all"] = 2000) -> Path:
        """Write the run's report, a page that opens without a network, and return it.

        Args:
            data_dir: The folder of the test images, where they were moved.
            images: How many test images of each domain are scored.

        Raises:
            FedShiftError: If it cannot be made.
        """
        from fedshift.lab.pages.report import command

        given = {"data-dir": data_dir, "images": images}
        return command.run(self.folder, [f"{key}={value}" for key, value in given.items() if value is not None]).page

    def model(self, *, node: int | None = None, round: int | None = None, before_adaptation: bool = False) -> "Model":
        """Return the trained model as a torch module.

        Args:
            node: The node whose model it is, where each has its own; None for the model of all.
            round: The kept round after which; None for the last.
            before_adaptation: The model before the run adapts it for a score.

        Raises:
            FedShiftError: If the run has no such model.
        """
        from fedshift.api import model as saved_model

        return saved_model.of_run(self.folder, node=node, server_round=round, before=before_adaptation)

    def save(
        self,
        folder: str | Path | None = None,
        *,
        format: Form = "safetensors",
        node: int | None = None,
        round: int | None = None,
        before_adaptation: bool = False,
    ) -> Path:
        """Save the model with a card and all that :func:`fedshift.predict` needs, and return its folder.

        Args:
            folder: The folder to make; None for one in the run folder.
            format: ``safetensors``, ``torchscript``, ``onnx`` or ``exported``.
            node: As of :meth:`model`.
            round: As of :meth:`model`.
            before_adaptation: As of :meth:`model`.

        Raises:
            FedShiftError: If the run has no such model, the form does not support it, or the folder exists.
        """
        return save_model(
            self.folder, format=format, node=node, output=folder, round=round, before_adaptation=before_adaptation
        )[0]


def _log_lines(line: str) -> list[str]:
    """Return the lines of an entry of ``log.jsonl``; a broken one as it is."""
    try:
        entry = json.loads(line)
        head = f"{entry['time']} {entry['level']}"
        return [f"{head} {text}" for text in str(entry["message"]).splitlines() if text.strip()]
    except (ValueError, KeyError, TypeError):
        return [line]
