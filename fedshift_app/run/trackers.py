"""``tracking=tensorboard,mlflow,wandb,otlp``: shows the rounds of a run elsewhere, in addition to ``metrics.jsonl``.

By default the first three write to the disk of the ServerApp alone: TensorBoard into ``tensorboard`` and W&B offline
into ``wandb`` within the run folder, MLflow into ``mlruns`` next to it; OTLP goes to a collector on its machine. Only
the libraries' own environment variables name another place: ``MLFLOW_TRACKING_URI``, ``WANDB_MODE=online``,
``OTEL_EXPORTER_OTLP_ENDPOINT``.
"""

import contextlib
import fcntl
import logging
import math
import os
import re
import shutil
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from fedshift_app.config.keys import flat
from fedshift_app.config.trackers import CALLED, TrackerName
from fedshift_app.run import metrics
from fedshift_app.run.files import RESULTS_FILE
from fedshift_core.accuracies import average
from fedshift_core.limits import shortened
from fedshift_strategies.federation.context import RoundResult

FOLDER = "tensorboard"  # in the run folder
STORE = "mlruns"  # next to the run folders: one page for all of them
PROJECT = "fedshift"
RUN_TAG = "fedshift.run_id"
PLACE = "MLFLOW_TRACKING_URI"  # environment variable: another place of the store
LONGEST = 500  # characters of a parameter, the limit of older MLflow servers
AT_ONCE = 100  # parameters of one request
NOT_TAKEN = re.compile(r"[^\w.\- /]")  # characters that no metric's name may have
#: A server that does not answer must not block a run, and the libraries must not report to their makers.
QUIET = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
}
_Tracker = Generator[None, RoundResult | None, None]  # is sent each full round, then None

log = logging.getLogger("fedshift")


class Trackers:
    """The trackers of a run; the failure of one does not end the run: it warns once and stops."""

    def __init__(
        self,
        names: Sequence[TrackerName],
        folder: Path,
        run_id: str,
        config: Mapping[str, Any],
        history: Sequence[RoundResult],
    ) -> None:
        """Open all, with the rounds of ``history``: a resumed run shows only rounds that it kept.

        Args:
            names: Value of the key ``tracking``.
            folder: The run's folder.
            run_id: The id of the run, the same after a resume.
            config: The run's configuration, for the page of hyperparameters.
            history: The rounds that the run has already.
        """
        begin = {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb, "otlp": _otlp}
        self._on: dict[TrackerName, _Tracker] = {name: begin[name](folder, run_id, config) for name in names}
        self.send(None)
        for result in history:
            self.send(result)

    def send(self, result: RoundResult | None) -> None:
        """Show a full round; after None nothing more is written."""
        for name, tracker in [*self._on.items()]:
            try:
                tracker.send(result)
            except StopIteration:
                del self._on[name]
            except Exception as error:
                log.warning("tracking: %s gets no more rounds: %s: %s", CALLED[name], type(error).__name__, error)
                del self._on[name]


def scalars(result: RoundResult) -> dict[str, float]:
    """Return the numbers of a round by tag. Accuracy on a part of the test images has its own tags."""
    accuracy = "accuracy" if result.evaluated_share == 1 else "accuracy_on_part"
    values: dict[str, float | None] = {f"{accuracy}/{domain}": value for domain, value in result.accuracy.items()}
    values[f"{accuracy}/avg"] = average(result.accuracy)
    values |= {f"test_loss/{domain}": value for domain, value in result.test_loss.items()}
    values |= {f"loss/{name}": value for name, value in result.losses.items()}
    values |= {"bytes/up": result.bytes_up, "bytes/down": result.bytes_down, "seconds": result.seconds}
    return {tag: value for tag, value in values.items() if value is not None and math.isfinite(value)}


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return all set values of a configuration by dotted key; lists as text."""
    known = {key: value for key, value in flat(config).items() if value is not None}
    return {key: value if isinstance(value, bool | int | float | str) else str(value) for key, value in known.items()}


def _tensorboard(run_folder: Path, _: str, config: Mapping[str, Any]) -> _Tracker:
    """Write scalars by round into one event file."""
    from tensorboard.plugins.hparams import summary_v2
    from torch.utils.tensorboard import SummaryWriter

    shutil.rmtree(run_folder / FOLDER, ignore_errors=True)
    writer: Any = SummaryWriter(run_folder / FOLDER)
    writer.file_writer.add_summary(summary_v2.hparams_pb(_settings(config), trial_id=run_folder.name))
    while (result := (yield)) is not None:
        for tag, value in scalars(result).items():
            writer.add_scalar(tag, value, result.server_round)
        writer.flush()
    writer.close()


def _mlflow(folder: Path, run_id: str, config: Mapping[str, Any]) -> _Tracker:
    """Write parameters and metrics by round through MLflow's client; a resumed run replaces its earlier entry."""
    os.environ.update(QUIET | os.environ)
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    place = os.environ.get(PLACE) or store_in(folder.parent)
    params = [Param(key, shortened(str(value), LONGEST)) for key, value in _settings(config).items()]
    with _one_at_a_time(place):
        client = MlflowClient(tracking_uri=place)
        experiment = _experiment(client, str(config.get("experiment") or PROJECT))
        for old in client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{run_id}'"):
            client.delete_run(old.info.run_id)
        run = client.create_run(experiment, run_name=folder.name, tags={RUN_TAG: run_id}).info.run_id
        for start in range(0, len(params), AT_ONCE):
            client.log_batch(run, params=params[start : start + AT_ONCE])
    while (result := (yield)) is not None:
        now = int(1000 * time.time())
        metrics = [Metric(_named(tag), value, now, result.server_round) for tag, value in scalars(result).items()]
        with _one_at_a_time(place):
            client.log_batch(run, metrics=metrics)
    with _one_at_a_time(place):
        client.set_terminated(run, "FINISHED" if (folder / RESULTS_FILE).is_file() else "KILLED")


def _experiment(client: Any, name: str) -> str:
    """Return the id of an experiment, which another run may be making at the same moment."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name))
        except MlflowException:
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    return str(experiment.experiment_id)


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


def _wandb(folder: Path, run_id: str, config: Mapping[str, Any]) -> _Tracker:
    """Write the configuration and scalars by round into one W&B run.

    Offline, which is the default, a resumed run rewrites its files. Online, W&B continues the run and drops the rounds
    that it has already.
    """
    os.environ.update(QUIET | os.environ)
    import wandb

    library: Any = wandb
    mode = os.environ.get("WANDB_MODE") or "offline"
    if mode == "offline":
        shutil.rmtree(folder / "wandb", ignore_errors=True)
    quiet = dict.fromkeys(("silent", "disable_git", "disable_code", "x_disable_stats", "x_disable_meta"), True)
    run = library.init(
        project=os.environ.get("WANDB_PROJECT") or PROJECT,
        group=str(config.get("experiment") or ""),
        name=folder.name,
        id=run_id or None,
        dir=str(folder),
        config=_settings(config),
        mode=mode,
        resume="allow" if mode == "online" else None,
        reinit="create_new",
        settings=library.Settings(console="off", **quiet),
    )
    while (result := (yield)) is not None:
        run.log(scalars(result), step=result.server_round)
    run.finish(exit_code=0 if (folder / RESULTS_FILE).is_file() else 1)
    if library.run is None:  # else a run of the user's own goes on in this process, which would end with it
        library.teardown()  # waits for its process, which writes the last rounds after ``finish`` returns


def _otlp(folder: Path, run_id: str, config: Mapping[str, Any]) -> _Tracker:
    """Send what ``fedshift status --metrics`` has of rounds to a collector, each minute and at the end.

    The library's thread sends, so that a collector that does not answer never holds a round up.
    """
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    about = {"service.name": PROJECT, "service.instance.id": run_id, "run": folder.name}
    provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], Resource.create(about))
    meter = provider.get_meter(PROJECT)
    gauges = {name: meter.create_gauge(f"{PROJECT}.{name}", description=text) for name, text in metrics.ROUNDS.items()}
    while (yield) is not None:
        for name, value, labels in metrics.of_rounds(folder):
            if value is not None:
                gauges[name].set(value, labels)
    provider.shutdown()
