"""MLflow and Weights & Biases: the rounds of a run in a store that holds many of them.

By default both write to the disk of the ServerApp alone: MLflow into ``mlruns`` beside the run folder, W&B into
``wandb`` within it, offline. Their own environment variables name another place: ``MLFLOW_TRACKING_URI``,
``WANDB_MODE=online``.
"""

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from fedshift_app.run.tracking import Guarded, scalars, settings
from fedshift_core.limits import shortened
from strategies.federation.context import RoundResult

STORE = "mlruns"  # beside the run folders: one page for all of them
PROJECT = "fedshift"
RUN_TAG = "fedshift.run_id"
PLACE = "MLFLOW_TRACKING_URI"  # in the environment: where the store is instead
LONGEST = 500  # characters of a parameter, as older MLflow servers have it
AT_ONCE = 100  # parameters of one request
NOT_TAKEN = re.compile(r"[^\w.\- /]")  # in the name of a metric
RESULTS_FILE = "results.json"  # by which a run is finished
#: A server that does not answer must not hold up a run; nor is anything told to the libraries' makers.
MLFLOW_QUIET = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20", "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
}  # fmt: skip
WANDB_QUIET = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}


class MLflow(Guarded):
    """Writes parameters and metrics by round through MLflow's client.

    A run that is resumed takes the place of what was there of it: each round is there once.
    """

    name = "mlflow"

    def __init__(
        self, folder: Path, told: Mapping[str, Any], history: Sequence[RoundResult], *, run_id: str = ""
    ) -> None:
        self._run_id = run_id
        super().__init__(folder, told, history)

    def _open(self, folder: Path, told: Mapping[str, Any], history: Sequence[RoundResult]) -> None:
        for key, value in MLFLOW_QUIET.items():
            os.environ.setdefault(key, value)
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric, self._results = Metric, folder / RESULTS_FILE
        self._place = os.environ.get(PLACE) or store_in(folder.parent)
        with _one_at_a_time(self._place):
            self._client = MlflowClient(tracking_uri=self._place)
            experiment = self._experiment(str(told.get("experiment") or PROJECT))
            for old in self._client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{self._run_id}'"):
                self._client.delete_run(old.info.run_id)
            made = self._client.create_run(experiment, run_name=folder.name, tags={RUN_TAG: self._run_id})
        self._run = made.info.run_id
        params = [Param(key, shortened(str(value), LONGEST)) for key, value in settings(told)]
        with _one_at_a_time(self._place):
            for start in range(0, len(params), AT_ONCE):
                self._client.log_batch(self._run, params=params[start : start + AT_ONCE])
        for result in history:
            self._write(result)

    def _experiment(self, name: str) -> str:
        """Return the id of an experiment, which another run may be making at the same moment."""
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _write(self, result: RoundResult) -> None:
        now = int(1000 * time.time())
        told = [self._metric(_named(tag), value, now, result.server_round) for tag, value in scalars(result).items()]
        with _one_at_a_time(self._place):
            self._client.log_batch(self._run, metrics=told)

    def _end(self) -> None:
        with _one_at_a_time(self._place):
            self._client.set_terminated(self._run, "FINISHED" if self._results.is_file() else "KILLED")


def store_in(folder: Path) -> str:
    """Return what MLflow calls the store that runs of a folder share."""
    return (folder.resolve() / STORE).as_uri()


@contextlib.contextmanager
def _one_at_a_time(place: str) -> Iterator[None]:
    """Let one run at a time touch a store of files.

    MLflow looks whether an experiment is there, then makes it; it writes a run's file anew in place, and who begins
    reads the files of all runs, also half a one. A server sees to both itself.
    """
    found = urlsplit(place)
    if found.scheme != "file":
        yield
        return
    store = Path(url2pathname(found.path))
    with store.with_name(f".{store.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _named(tag: str) -> str:
    """Return a tag as MLflow takes it; its local store keeps one file for each, so none may be a folder of another."""
    group, _, name = tag.partition("/")
    return NOT_TAKEN.sub("_", f"{group}/{name.replace('/', '.')}" if name else group)


class WeightsAndBiases(Guarded):
    """Writes the configuration and scalars by round into one W&B run.

    Offline, which is the default, a resumed run's files are written anew. Online, W&B goes on with the run and drops
    the rounds that it has.
    """

    name = "wandb"

    def __init__(
        self, folder: Path, told: Mapping[str, Any], history: Sequence[RoundResult], *, run_id: str = ""
    ) -> None:
        self._run_id = run_id
        super().__init__(folder, told, history)

    def _open(self, folder: Path, told: Mapping[str, Any], history: Sequence[RoundResult]) -> None:
        for key, value in WANDB_QUIET.items():
            os.environ.setdefault(key, value)
        import wandb

        self._library: Any = wandb
        mode = os.environ.get("WANDB_MODE") or "offline"
        if mode == "offline":
            shutil.rmtree(folder / "wandb", ignore_errors=True)
        self._results = folder / RESULTS_FILE
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT, group=str(told.get("experiment") or ""),
            name=folder.name, id=self._run_id or None, dir=str(folder), config=dict(settings(told)), mode=mode,
            resume="allow" if mode == "online" else None, reinit="create_new",
            settings=wandb.Settings(
                console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True,
                x_disable_meta=True,
            ),
        )  # fmt: skip
        for result in history:
            self._write(result)

    def _write(self, result: RoundResult) -> None:
        self._run.log(scalars(result), step=result.server_round)

    def _end(self) -> None:
        self._run.finish(exit_code=0 if self._results.is_file() else 1)
        self._library.teardown()  # its process writes the last rounds after ``finish`` has returned
