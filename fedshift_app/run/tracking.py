"""``tracking=tensorboard``: the rounds of a run as TensorBoard's event files, beside ``metrics.jsonl``."""

import importlib.util
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedshift_app.run.scores import mean
from fedshift_wire.errors import ConfigError
from strategies.federation.rounds import RoundResult

log = logging.getLogger("fedshift")

TrackerName = Literal["none", "tensorboard"]
FOLDER = "tensorboard"  # in the run folder
EVENTS = "events.out.tfevents."  # begins the name of each file that TensorBoard reads


def check_tracker(name: TrackerName) -> None:
    """Refuse to track with what is not installed.

    Raises:
        ConfigError: With the command that installs it.
    """
    if name == "tensorboard" and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError('tracking=tensorboard: TensorBoard is not installed; run: pip install "fedshift[tracking]"')


class Tracker:
    """Tracks nothing."""

    def add(self, result: RoundResult) -> None:
        """Show a full round."""

    def close(self) -> None:
        """Write nothing more."""


def tracker(name: TrackerName, run_folder: Path, told: Mapping[str, Any], history: Sequence[RoundResult]) -> Tracker:
    """Return what shows the rounds of a run.

    Args:
        name: Value of the key ``tracking``.
        run_folder: The run's folder.
        told: The run's configuration, for the page of hyperparameters.
        history: The rounds that the run has already.
    """
    return TensorBoard(run_folder / FOLDER, told, history) if name == "tensorboard" else Tracker()


class TensorBoard(Tracker):
    """Writes scalars by round into one event file. No failure of it is one of the run: it warns once and ends."""

    def __init__(self, folder: Path, told: Mapping[str, Any], history: Sequence[RoundResult]) -> None:
        """Begin the event file anew with ``history``: a resumed run shows no round that it did not keep."""
        self._records: Any = None
        self._safely(lambda: self._open(folder, told, history))

    def add(self, result: RoundResult) -> None:
        """Write a round; it can be seen at once."""
        if self._records is not None:
            self._safely(lambda: self._write(result))

    def close(self) -> None:
        """Close the file."""
        if self._records is not None:
            self._safely(self._records.close)
            self._records = None

    def _safely(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            log.warning("tracking: no more rounds for TensorBoard: %s: %s", type(error).__name__, error)
            self._records = None

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
        hparams = summary_v2.hparams_pb(dict(_scalars(told)), trial_id=folder.parent.name)
        self._records.write(Event(wall_time=now, summary=hparams).SerializeToString())
        self._records.flush()
        for result in history:
            self._write(result)

    def _write(self, result: RoundResult) -> None:
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars(result).items()]
        event = self._event(wall_time=time.time(), step=result.server_round, summary=self._summary(value=values))
        self._records.write(event.SerializeToString())
        self._records.flush()


def scalars(result: RoundResult) -> dict[str, float]:
    """Return what is drawn of a round, by tag; accuracy on a part of the test images has tags of its own."""
    accuracy = "accuracy" if result.evaluated_share == 1 else "accuracy_on_part"
    found: dict[str, float | None] = {f"{accuracy}/{domain}": value for domain, value in result.accuracy.items()}
    found[f"{accuracy}/avg"] = mean(result.accuracy.values())
    found |= {f"test_loss/{domain}": value for domain, value in result.test_loss.items()}
    found |= {f"loss/{name}": value for name, value in result.losses.items()}
    found |= {"bytes/up": result.bytes_up, "bytes/down": result.bytes_down, "seconds": result.seconds}
    return {tag: value for tag, value in found.items() if value is not None and math.isfinite(value)}


def _scalars(section: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    """Return all values of a configuration by their dotted key; lists as text, what is unset not at all."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{above}{key}.")
        elif value is not None:
            yield f"{above}{key}", value if isinstance(value, bool | int | float | str) else str(value)
