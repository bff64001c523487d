"""MLflow and Weights & Biases: the rounds of a run in a store that holds many runs.

By default both write to the disk of the ServerApp alone: MLflow into ``mlruns`` next to the run folder, W&B offline
into ``wandb`` within it. Their own environment variables name another place: ``MLFLOW_TRACKING_URI``,
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

from fedshift_app.run.tracker_base import Guarded, scalars, settings
from fedshift_core.limits import shortened
from fedshift_strategies.federation.context import RoundResult

STORE = "mlruns"  # next to the run folders: one page for all of them
PROJECT = "fedshift"
RUN_TAG = "fedshift.run_id"
PLACE = "MLFLOW_TRACKING_URI"  # environment variable: another place of the store
LONGEST = 500  # characters of a parameter, the limit of older MLflow servers
AT_ONCE = 100  # parameters of one request
NOT_TAKEN = re.compile(r"[^\w.\- /]")  # characters that no metric's name may have
RESULTS_FILE = "results.json"  # marks a finished run
#: A server that does not answer must not block a run, and the libraries must not report to their makers.
MLFLOW_QUIET = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
}
WANDB_QUIET = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}


class MLflow(Guarded):
    """Writes parameters and metrics by round through MLflow's client.

    A resumed run replaces its earlier entry, so each round appears once.
    """

    name = "mlflow"

    def _open(self, folder: Path, config: Mapping[str, Any], history: Sequence[RoundResult]) -> None:
        for key, value in MLFLOW_QUIET.items():
            os.environ.setdefault(key, value)
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric, self._results = Metric, folder / RESULTS_FILE
        self._place = os.environ.get(PLACE) or store_in(folder.parent)
        with _one_at_a_time(self._place):
            self._client = MlflowClient(tracking_uri=self._place)
            experiment = self._experiment(str(config.get("experiment") or PROJECT))
            for old in self._client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{self._run_id}'"):
                self._client.delete_run(old.info.run_id)
            run = self._client.create_run(experiment, run_name=folder.name, tags={RUN_TAG: self._run_id})
        self._run = run.info.run_id
        params = [Param(key, shortened(str(value), LONGEST)) for key, value in settings(config)]
        with _one_at_a_time(self._place):
            for start in range(0, len(params), AT_ONCE):
                self._client.log_batch(self._run, params=params[start : start + AT_ONCE])
        for result in history:
            self._write(result)

    def _experiment(self, name: str) -> str:
        """Return the id of an experiment, which another run may be making at the same moment."""
        from mlflow.exceptions import MlflowException

        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)

    def _write(self, result: RoundResult) -> None:
        now = int(1000 * time.time())
        metrics = [self._metric(_named(tag), value, now, result.server_round) for tag, value in scalars(result).items()]
        with _one_at_a_time(self._place):
            self._client.log_batch(self._run, metrics=metrics)

    def _end(self) -> None:
        with _one_at_a_time(self._place):
            self._client.set_terminated(self._run, "FINISHED" if self._results.is_file() else "KILLED")


def store_in(folder: Path) -> str:
    """Return the URI of the MLflow store that the runs of a folder share."""
    return (folder.resolve() / STORE).as_uri()


@contextlib.contextmanager
def _one_at_a_time(place: str) -> Iterator[None]:
    """Let one run at a time touch a store of files.

    MLflow checks whether an experiment exists, then makes it; it rewrites a run's file in place, and a starting process
    reads the files of all runs, even incomplete ones. A server prevents both problems itself.
    """
    url = urlsplit(place)
    if url.scheme != "file":
        yield
        return
    store = Path(url2pathname(url.path))
    store.parent.mkdir(parents=True, exist_ok=True)  # as MLflow makes the folder
    with store.with_name(f".{store.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _named(tag: str) -> str:
    """Return a tag in MLflow's form. Its local store has one file per tag, so no tag may be the folder of another."""
    group, _, name = tag.partition("/")
    return NOT_TAKEN.sub("_", f"{group}/{name.replace('/', '.')}" if name else group)


class WeightsAndBiases(Guarded):
    """Writes the configuration and scalars by round into one W&B run.

    Offline, which is the default, a resumed run rewrites its files. Online, W&B continues the run and drops
    the rounds that it has already.
    """

    name = "wandb"

    def _open(self, folder: Path, config: Mapping[str, Any], history: Sequence[RoundResult]) -> None:
        for key, value in WANDB_QUIET.items():
            os.environ.setdefault(key, value)
        import wandb

        self._library: Any = wandb
        mode = os.environ.get("WANDB_MODE") or "offline"
        if mode == "offline":
            shutil.rmtree(folder / "wandb", ignore_errors=True)
        self._results = folder / RESULTS_FILE
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            group=str(config.get("experiment") or ""),
            name=folder.name,
            id=self._run_id or None,
            dir=str(folder),
            config=dict(settings(config)),
            mode=mode,
            resume="allow" if mode == "online" else None,
            reinit="create_new",
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                x_disable_meta=True,
            ),
        )
        for result in history:
            self._write(result)

    def _write(self, result: RoundResult) -> None:
        self._run.log(scalars(result), step=result.server_round)

    def _end(self) -> None:
        self._run.finish(exit_code=0 if self._results.is_file() else 1)
        if self._library.run is None:  # else a run of the user's own goes on in this process, which would end with it
            self._library.teardown()  # waits for its process, which writes the last rounds after ``finish`` returns
