"""A trial: a run in its own process, of which only the validation accuracy is read."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from fedshift.lab.grid.sweep import children, records, sweeping
from fedshift.lab.grid.sweep.children import Child
from fedshift.lab.grid.sweep.forks import Forks
from fedshift.lab.grid.sweep.grid import Point
from fedshift.lab.grid.sweep.records import Images
from fedshift_app.run import checkpoints, files, model_selection, resuming, trackers
from fedshift_app.run.files import CONFIG_FILE, METRICS_FILE, RESULTS_FILE
from fedshift_core.accuracies import mean
from fedshift_core.errors import FedShiftError
from fedshift_core.rounds import LAST_ROUNDS

SET_ASIDE = "set-aside"  # folder of a trial's runs that could not be continued


def averages(folder: Path) -> dict[int, float]:
    """Return the validation accuracy by round, in percent: the mean over domains.

    Only the key ``validation`` of ``metrics.jsonl`` is read. A round that lacks a domain of other rounds is left out:
    a mean over the rest would be another quantity.
    """
    scores: dict[int, dict[str, float]] = {}
    for line in files.full_lines(folder / METRICS_FILE):
        validation = line.get("validation") or {}
        scores[int(line["round"])] = {name: value for name, value in validation.items() if value is not None}
    domains = {name for known in scores.values() for name in known}
    means = {number: mean(known.values()) for number, known in scores.items() if known and known.keys() == domains}
    return {number: value for number, value in means.items() if value is not None}


def score(by_round: Mapping[int, float], keep: str) -> float | None:
    """Return the value of a finished trial: the mean of the last five rounds; None without rounds.

    A run that keeps the best round by validation has the value of that round.
    """
    values = [by_round[number] for number in sorted(by_round)]
    if keep == model_selection.BEST and values:
        return max(values)
    return mean(values[-LAST_ROUNDS:])


class Going:
    """A trial in progress.

    Attributes:
        number: Of the search.
        point: Its run.
        place: The folder that holds its run folder.
        child: Its process.
        attempts: How often it was started by this process.
        by_round: Its accuracy so far.
    """

    def __init__(self, number: int, point: Point, place: Path, sweep_folder: Path, images: Images) -> None:
        self.number, self.point, self.place = number, point, place
        self._sweep = sweep_folder
        self.child: Child | None = None
        self.attempts = 0
        self.by_round: dict[int, float] = {}
        self._size = -1
        place.mkdir(parents=True, exist_ok=True)
        for file in sorted(place.glob(f"*/{CONFIG_FILE}")):  # of an earlier search whose store was removed
            made = records.read_run(file)
            if made is None or made[0] != point.key:
                self._set_aside(file.parent, "it does not have the settings of this trial")
            elif self.finished_in(file.parent) and (parts := images.changed(point.config, made[1])):
                self._set_aside(file.parent, f"{parts} had other images")

    @property
    def folder(self) -> Path | None:
        """Its run folder, once there is one."""
        return max((file.parent for file in self.place.glob(f"*/{CONFIG_FILE}")), default=None)

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return self.folder is not None and self.finished_in(self.folder)

    @staticmethod
    def finished_in(folder: Path) -> bool:
        """Return whether a folder holds a finished run."""
        return (folder / RESULTS_FILE).is_file()

    @property
    def log(self) -> Path:
        """Its log file."""
        return self.place / "run.log"

    def start(self, workers: int | None, alone: bool, forks: Forks) -> None:
        """Start the run or resume it; a run that cannot be resumed starts anew."""
        arguments = [*self.point.arguments, f"output-dir={self.place}"]
        if workers is not None:
            arguments.append(f"workers={workers}")
        if self.folder is not None:
            try:
                resuming.resolve(self.point.flat | {"resume": str(self.folder)}, hold=False)
                arguments.append(f"resume={self.folder}")
            except FedShiftError as error:
                self._set_aside(self.folder, f"it cannot be continued: {error}")
        self.attempts += 1
        self.child = children.start(
            sweeping.run_command(), arguments, self.log, sweep=str(self._sweep), key=self.place.name,
            attempt=self.attempts, alone=alone, forks=forks,
            env={trackers.PLACE: trackers.store_in(self._sweep)},  # one store for all trials, and the runs compared
        )  # fmt: skip

    def _set_aside(self, folder: Path, why: str) -> None:
        aside = self.place / SET_ASIDE / folder.name
        typer.echo(f"{folder} is started again and moved to {aside}, as {why}", err=True)
        aside.parent.mkdir(exist_ok=True)
        folder.rename(aside)

    def look(self) -> bool:
        """Read its accuracy; return whether there are new rounds."""
        file = self.folder / METRICS_FILE if self.folder is not None else None
        size = file.stat().st_size if file is not None and file.is_file() else 0
        if size == self._size:
            return False
        self._size = size
        self.by_round = averages(self.folder) if self.folder is not None and size else {}
        return True

    def notes(self) -> dict[str, Any]:
        """Return notes on it for the user."""
        seconds = self.child.seconds if self.child is not None else 0.0
        return {
            "run": str(self.folder.relative_to(self._sweep)) if self.folder is not None else "",
            "rounds": max(self.by_round, default=0), "seconds": round(seconds, 1),
        }  # fmt: skip

    def tidy(self) -> None:
        """Remove the weights of a trial that has ended: nobody resumes it."""
        if self.folder is not None:
            shutil.rmtree(self.folder / checkpoints.FOLDER, ignore_errors=True)
