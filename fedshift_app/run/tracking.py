"""``tracking=tensorboard,mlflow,wandb``: the rounds of a run elsewhere as well, beside ``metrics.jsonl``.

Nothing leaves this machine unless its user has said so in the environment (``fedshift_app.run.trackers``).
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedshift_app.config.trackers import CALLED, TrackerName
from fedshift_app.run.scores import mean
from strategies.federation.context import RoundResult

log = logging.getLogger("fedshift")

FOLDER = "tensorboard"  # in the run folder
EVENTS = "events.out.tfevents."  # begins the name of each file that TensorBoard reads


class Tracker:
    """Tracks nothing."""

    def add(self, result: RoundResult) -> None:
        """Show a full round."""

    def close(self) -> None:
        """Write nothing more."""


class All(Tracker):
    """Several of them."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = trackers

    def add(self, result: RoundResult) -> None:
        """Show a full round to all of them."""
        for one in self._trackers:
            one.add(result)

    def close(self) -> None:
        """Write nothing more."""
        for one in self._trackers:
            one.close()


class Guarded(Tracker):
    """One whose failure is none of the run: it warns once and ends.

    Attributes:
        name: Its name in a configuration.
    """

    name: TrackerName

    def __init__(self, folder: Path, told: Mapping[str, Any], history: Sequence[RoundResult]) -> None:
        """Begin anew with ``history``: a resumed run shows no round that it did not keep."""
        self._on = True
        self._safely(lambda: self._open(folder, told, history))

    def add(self, result: RoundResult) -> None:
        """Write a round; it can be seen at once."""
        self._safely(lambda: self._write(result))

    def close(self) -> None:
        """Write nothing more."""
        self._safely(self._end)
        self._on = False

    def _safely(self, act: Callable[[], None]) -> None:
        if not self._on:
            return
        try:
            act()
        except Exception as error:
            log.warning("tracking: no more rounds for %s: %s: %s", CALLED[self.name], type(error).__name__, error)
            self._on = False

    def _open(self, folder: Path, told: Mapping[str, Any], history: Sequence[RoundResult]) -> None:
        raise NotImplementedError

    def _write(self, result: RoundResult) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError


def tracker(
    names: Sequence[TrackerName], run_folder: Path, run_id: str, told: Mapping[str, Any], history: Sequence[RoundResult]
) -> Tracker:
    """Return what shows the rounds of a run.

    Args:
        names: Value of the key ``tracking``.
        run_folder: The run's folder.
        run_id: Names the run, also after it was resumed.
        told: The run's configuration, for the page of hyperparameters.
        history: The rounds that the run has already.
    """
    found: list[Tracker] = []
    for name in names:
        if name == "tensorboard":
            found.append(TensorBoard(run_folder / FOLDER, told, history))
            continue
        from fedshift_app.run import trackers  # only where it is asked for

        kind = trackers.MLflow if name == "mlflow" else trackers.WeightsAndBiases
        found.append(kind(run_folder, told, history, run_id=run_id))
    return All(found)


class TensorBoard(Guarded):
    """Writes scalars by round into one event file."""

    name = "tensorboard"

    def _open(self, folder: Path, told: Mapping[str, Any], history: Sequence[RoundResult]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import summary_v2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        folder.mkdir(exist_ok=True)
        for old in folder.glob(f"{EVENTS}*"):
            old.unlink()
        now = time.time()
        self._records = RecordWriter((folder / f"{EVENTS}{int(now)}.fedshift").open("wb"))
        self._records.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
        hparams = summary_v2.hparams_pb(dict(settings(told)), trial_id=folder.parent.name)
        self._records.write(Event(wall_time=now, summary=hparams).SerializeToString())
        self._records.flush()
        for result in history:
            self._write(result)

    def _write(self, result: RoundResult) -> None:
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars(result).items()]
        event = self._event(wall_time=time.time(), step=result.server_round, summary=self._summary(value=values))
        self._records.write(event.SerializeToString())
        self._records.flush()

    def _end(self) -> None:
        self._records.close()


def scalars(result: RoundResult) -> dict[str, float]:
    """Return what is drawn of a round, by tag; accuracy on a part of the test images has tags of its own."""
    accuracy = "accuracy" if result.evaluated_share == 1 else "accuracy_on_part"
    found: dict[str, float | None] = {f"{accuracy}/{domain}": value for domain, value in result.accuracy.items()}
    found[f"{accuracy}/avg"] = mean(result.accuracy.values())
    found |= {f"test_loss/{domain}": value for domain, value in result.test_loss.items()}
    found |= {f"loss/{name}": value for name, value in result.losses.items()}
    found |= {"bytes/up": result.bytes_up, "bytes/down": result.bytes_down, "seconds": result.seconds}
    return {tag: value for tag, value in found.items() if value is not None and math.isfinite(value)}


def settings(section: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    """Return all values of a configuration by their dotted key; lists as text, what is unset not at all."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from settings(value, f"{above}{key}.")
        elif value is not None:
            yield f"{above}{key}", value if isinstance(value, bool | int | float | str) else str(value)
