"""``tracking=tensorboard,mlflow,wandb``: shows the rounds of a run elsewhere, in addition to ``metrics.jsonl``.

Nothing leaves this machine unless its user has set that in the environment (``fedshift_app.run.trackers``).
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedshift_app.config.trackers import TrackerName
from fedshift_app.run.tracker_base import Guarded, Tracker, scalars, settings
from fedshift_strategies.federation.context import RoundResult

FOLDER = "tensorboard"  # in the run folder
EVENTS = "events.out.tfevents."  # begins the name of each file that TensorBoard reads


class All(Tracker):
    """Passes every round to several trackers."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = trackers

    def add(self, result: RoundResult) -> None:
        """Pass a full round to all trackers."""
        for tracker in self._trackers:
            tracker.add(result)

    def close(self) -> None:
        """Close all trackers."""
        for tracker in self._trackers:
            tracker.close()


def tracker(
    names: Sequence[TrackerName],
    run_folder: Path,
    run_id: str,
    config: Mapping[str, Any],
    history: Sequence[RoundResult],
) -> Tracker:
    """Return the trackers of a run as one.

    Args:
        names: Value of the key ``tracking``.
        run_folder: The run's folder.
        run_id: The id of the run, the same after a resume.
        config: The run's configuration, for the page of hyperparameters.
        history: The rounds that the run has already.
    """
    trackers_of_run: list[Tracker] = []
    for name in names:
        if name == "tensorboard":
            trackers_of_run.append(TensorBoard(run_folder / FOLDER, config, history))
            continue
        from fedshift_app.run import trackers  # imported only if it is used

        tracker_class = trackers.MLflow if name == "mlflow" else trackers.WeightsAndBiases
        trackers_of_run.append(tracker_class(run_folder, config, history, run_id=run_id))
    return All(trackers_of_run)


class TensorBoard(Guarded):
    """Writes scalars by round into one event file."""

    name = "tensorboard"

    def _open(self, folder: Path, config: Mapping[str, Any], history: Sequence[RoundResult]) -> None:
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
        hparams = summary_v2.hparams_pb(dict(settings(config)), trial_id=folder.parent.name)
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
