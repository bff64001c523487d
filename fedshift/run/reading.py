"""Reads a run folder, finished or not."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedshift_app.config import plugins, written
from fedshift_app.config.sections import RunConfig
from fedshift_app.config.validating import sections_of_run
from fedshift_app.run import agreement, checkpoints, config_file, files, model_selection, sections, summary
from fedshift_app.run.files import CONFIG_FILE, METRICS_FILE, RESULTS_FILE, full_lines
from fedshift_core.errors import ConfigError
from fedshift_core.features import task_of
from fedshift_core.paths import user_path
from fedshift_core.shown import History
from fedshift_core.tasks import Task
from fedshift_core.wire.names import DEPLOYMENT
from fedshift_strategies.federation.roster import Node

log = logging.getLogger("fedshift")


@dataclass(frozen=True)
class Record:
    """The contents of a run folder.

    Attributes:
        folder: The run folder.
        config: The resolved configuration.
        config_file: All of ``config.yaml``.
        lines: The full rounds of ``metrics.jsonl``.
        results: ``results.json``; for an unfinished run, the summary of its rounds so far. None if no round was scored
            on all test images.
        finished: Whether the folder has a ``results.json``.
        sections: By feature (``Feature.file``), what it has of the last round that was scored on all test images, or of
            the one that the run keeps; without those that it lacks.
        checkpoint: The state after the round whose model the run keeps (``keep``). If it cannot be read, the last
            readable state; None without one.
        kept_round: The round that the run has chosen by ``keep``; 0 if it keeps the last.
        lacking: Code of the run that is not installed and is needed for the model, with the remedy; empty for none.
        contradiction: What contradicts itself among the files, or was changed within the run; empty if nothing.
    """

    folder: Path
    config: RunConfig
    config_file: dict[str, Any]
    lines: list[dict[str, Any]]
    results: dict[str, Any] | None
    finished: bool
    checkpoint: checkpoints.Checkpoint | None
    sections: Mapping[str, Any] = field(default_factory=dict)
    kept_round: int = 0
    lacking: str = ""
    contradiction: str = ""

    @property
    def engine(self) -> str:
        """The engine of the run."""
        return str(self.config_file["engine"])

    @property
    def task(self) -> Task:
        """Its task."""
        return task_of(self.config.task)

    @property
    def classes(self) -> tuple[str, ...]:
        """Its classes; numbers if the data set with their names is not installed."""
        try:
            return self.config.dataset.known().classes
        except ConfigError:
            count = max((len(node.class_counts) for node in self.nodes), default=0)
            return self.config.dataset.classes or tuple(map(str, range(count)))

    @property
    def deployed(self) -> bool:
        """Whether the nodes were real ones, with images and private parts on other machines."""
        return self.engine == DEPLOYMENT

    @property
    def resumed_after(self) -> tuple[int, ...]:
        """The rounds after which the run was resumed."""
        return tuple(int(resumed["after_round"]) for resumed in self.config_file.get("resumed", ()))

    @property
    def nodes(self) -> list[Node]:
        """All nodes that have ever replied, by index; none before the first full round."""
        return self.checkpoint.nodes if self.checkpoint else []


def read(folder: Path, command: str = "report") -> Record:
    """Read a run folder; messages name ``command``.

    Raises:
        ConfigError: If it is no run folder, or has a file that no run writes.
    """
    path = user_path(folder)
    recorded = config_file.read(path, command, ("resolved", "engine", "nodes"))
    settings = sections_of_run(recorded) | {"plugins": plugins.located(recorded, path / CONFIG_FILE)}
    config = written.read_back(settings)
    lacking = written.lacking(config)
    lines, finished = full_lines(path / METRICS_FILE), (path / RESULTS_FILE).is_file()
    results = files.results(path) if finished else None
    if finished and not lines:
        raise ConfigError(
            f"{command}: {path / METRICS_FILE} holds no full round, but {RESULTS_FILE} those of a finished run: it is "
            "missing or damaged, expected is a line for each round"
        )
    history, contradicts = [summary.round_of(line) for line in lines], agreement.contradictions(results or {}, lines)
    best = model_selection.best(history) if config.keep == model_selection.BEST else None
    kept_round = 0 if best is None else int(best.server_round)
    checkpoint = _checkpoint(path / checkpoints.FOLDER, kept_round, command)
    so_far = History(config, history, checkpoint.nodes if checkpoint else ())
    scored = [line["round"] for line in lines if line.get("accuracy") and "evaluated_share" not in line]
    of_round = results if results is not None else sections.kept(path, scored[-1] if scored else None, config)
    return Record(
        folder=path,
        config=config,
        config_file=recorded,
        lines=lines,
        results=summary.finite(summary.summary(so_far)) if results is None and scored else results,
        finished=finished,
        checkpoint=checkpoint,
        kept_round=kept_round,
        sections=sections.models(of_round, config, f"{command}: {path / RESULTS_FILE}"),
        lacking="" if lacking is None else str(lacking).replace("\n", "; "),
        contradiction="; ".join(filter(None, [agreement.edited(path, recorded), contradicts])),
    )


def _checkpoint(folder: Path, kept_round: int, command: str) -> checkpoints.Checkpoint | None:
    for number in sorted(checkpoints.rounds(folder), key=lambda number: number != kept_round):
        try:
            return checkpoints.load(folder, number)
        except checkpoints.Damaged as reason:
            log.warning("%s: a damaged checkpoint is left out: %s", command, reason)
    return None
