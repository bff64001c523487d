"""Scores the models of a finished run again, of its last or kept round, on its nodes, into a new run folder."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord

from fedshift.lab.grid.rescore.keys import MAY_DIFFER, may_differ
from fedshift.run.engine.inline import NAME, InlineGrid
from fedshift_app import client_app
from fedshift_app.config import plugins
from fedshift_app.config import resolving as configuration
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.keys import flat
from fedshift_app.config.sections import RunConfig
from fedshift_app.config.validating import sections_of_run, validate
from fedshift_app.features.privacy import show as privacy
from fedshift_app.features.validation import show as validation
from fedshift_app.node import one_time_payload as node_payload
from fedshift_app.node import state_store
from fedshift_app.node.state_store import StateStore
from fedshift_app.run import agreement, checkpoints, initial_model, resuming
from fedshift_app.run import build as run_build
from fedshift_app.run import precision as run_precision
from fedshift_app.run.checkpoints import Past
from fedshift_app.run.files import CONFIG_FILE, RESULTS_FILE
from fedshift_app.run.folder import RunFolder, weights_hash
from fedshift_app.run.status import COMPLETED, StatusFile
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_ROUNDS, as_found, whole
from fedshift_core.wire.names import DEPLOYMENT
from fedshift_strategies.federation.context import RoundResult
from fedshift_strategies.federation.memory import NodeMemory

OF_IMAGES = ("none", "corruption")  # values of shift.name that leave the same images to be scored


@dataclass(frozen=True)
class Question:
    """A finished run, and the settings of its new scoring.

    Attributes:
        path: Its folder.
        given: The keys that differ.
    """

    path: Path
    given: Mapping[str, str]

    @property
    def label(self) -> str:
        """Return its label in messages."""
        return " ".join([self.path.name, *self.arguments])

    @property
    def arguments(self) -> list[str]:
        """Return the keys as command arguments."""
        return [f"{key}={value}" for key, value in self.given.items()]


@dataclass(frozen=True)
class Checked:
    """A checked question. It holds no weights, because many may wait.

    Attributes:
        path: The folder of the run.
        config: The configuration of the new folder.
        saved_config: The run's ``config.yaml``.
        server_round: The round after which its models are scored.
        digest: The SHA-256 of the shared weights of that round.
    """

    path: Path
    config: RunConfig
    saved_config: Mapping[str, Any]
    server_round: int
    digest: str

    def past(self) -> Past:
        """Return the run's state after that round.

        Raises:
            ConfigError: If its checkpoint is missing or damaged.
        """
        return _past(self.path, self.saved_config, self.config, self.server_round)

    @property
    def marks(self) -> dict[str, Any]:
        """The origin of the models, for the new folder's ``config.yaml``."""
        return {
            "run": self.path.name,
            "run_id": self.saved_config["run_id"],
            "round": self.server_round,
            "weights_sha256": self.digest,
            "git": self.saved_config.get("git"),
            "versions": self.saved_config.get("versions"),
        }


def check(question: Question) -> Checked:
    """Check whether a run can be scored so; the scoring itself checks its images.

    Raises:
        ConfigError: If the run is not finished or was deployed, the checkpoint of its last or kept round cannot be
            used or is of other weights than its results, or a key would change what was trained.
    """
    path = question.path
    saved_config = resuming.read_config(path)
    if not (path / RESULTS_FILE).is_file():
        raise ConfigError(f"{path} is not finished; continue it: fedshift run resume={path}")
    if saved_config["engine"] == DEPLOYMENT:
        raise ConfigError(f"{path} is a deployment: its nodes hold the images and their own models")
    files = plugins.located(saved_config, path / CONFIG_FILE)
    kept = validate(sections_of_run(saved_config) | {"plugins": files}, finished=True)
    if changed := agreement.edited(path, saved_config):
        raise ConfigError(f"{path}: {changed}; restore it")
    if not kept.rounds:
        raise ConfigError(f"{path} has rounds=0: it trained nothing; score its model again with `fedshift evaluate`")
    given, launch = parse_arguments([f"experiment={path / CONFIG_FILE}", *question.arguments])
    if launch:
        raise ConfigError(f"{next(iter(launch))}: nothing is launched; give keys of a run's configuration")
    config = resuming.as_kept(configuration.resolve(given, finished=True), kept)
    _refuse_training(path, kept, config)
    results = _results(path)
    server_round = int((results.get("chosen_round") or {}).get("round", 0) or results["rounds"])
    checkpoint = _past(path, saved_config, config, server_round).checkpoint
    assert checkpoint is not None  # a named checkpoint exists, or was refused
    digest = weights_hash(checkpoint.weights)
    recorded = results.get("weights_sha256")  # of the last round
    if server_round == results["rounds"] and digest != recorded:
        raise ConfigError(
            f"{path}: the weights of round {server_round} are not those of {RESULTS_FILE}: their SHA-256 is {digest}, "
            f"weights_sha256 is {as_found(recorded)}"
        )
    return Checked(path, config, saved_config, server_round, digest)


def _past(path: Path, saved_config: Mapping[str, Any], config: RunConfig, server_round: int) -> Past:
    """Return the run's state after that round, never after another one.

    Raises:
        ConfigError: If its checkpoint is missing or damaged.
    """
    try:
        return resuming.look(path, saved_config, config, None, server_round)
    except ConfigError as error:
        raise error.under("rescore") from None


def _refuse_training(path: Path, kept: RunConfig, requested: RunConfig) -> None:
    kept_values, requested_values = (flat(config.model_dump(mode="json")) for config in (kept, requested))
    for key in sorted(kept_values.keys() | requested_values.keys()):
        if kept_values.get(key) == requested_values.get(key) or may_differ(key):
            continue
        raise ConfigError(
            f"{key} is {as_found(kept_values.get(key))} in {path}, requested is {as_found(requested_values.get(key))}: "
            f"this key changes the training; without training only these may differ: adapt.*, {', '.join(MAY_DIFFER)}"
        )
    for shift in (kept.shift, requested.shift):
        if kept.shift.name != requested.shift.name and shift.name not in OF_IMAGES:
            raise ConfigError(
                f"shift.name is {kept.shift.name} in {path}, requested is {requested.shift.name}: this tests other "
                f"images; without training only these may differ: {' and '.join(OF_IMAGES)}"
            )


def score(checked: Checked, output_dir: Path, command: str) -> Path:
    """Score a run's models, then write the complete folder of the new run.

    Args:
        checked: The run and the configuration.
        output_dir: Where run folders are made.
        command: What was typed.

    Returns:
        The folder.

    Raises:
        FedShiftError: If the images are not those of the run any more, or no node can score.
    """
    config, past = checked.config, checked.past()
    checkpoint = past.checkpoint
    assert checkpoint is not None  # a named checkpoint exists, or was refused
    resuming.check_images(past, config)
    resumed_after = (*past.resumed_after, checkpoint.server_round)
    base = checked.path / checkpoints.FOLDER
    start = node_payload.of_run(base)
    initial, federation = run_build.prepare(config, NAME, initial_model.plain(config), start)
    scored: list[tuple[RoundResult, ArrayRecord]] = []
    strategy = run_build.strategy_of(config, federation, lambda *scored_round: scored.append(scored_round))
    grid = InlineGrid(client_app.app, past.num_nodes)
    strategy.gather(grid)
    settled, _ = run_precision.settle(config, strategy.roster.fastest, past, here=True)
    strategy.settle(settled.model_dump_json())
    resuming.check_nodes(past, nodes := strategy.roster.nodes)
    weights = run_build.restored(strategy, initial, checkpoint)
    kept_in = base / checkpoints.NODES_FOLDER
    strategy.memory = NodeMemory(past.run_id, str(kept_in), resumed_after, dict(checkpoint.memory))
    strategy.score_again(grid, weights, past.history[-1])
    [(result, weights)] = scored
    folder = RunFolder(
        output_dir, config, engine=NAME, personal=federation.model.personal, command=command, num_nodes=past.num_nodes,
        images=past.images, arithmetic=settled.train.arithmetic, scored_again=checked.marks,
        requested=checked.saved_config.get("asked"),
    )  # fmt: skip
    try:
        _copy_memory(kept_in, folder.nodes_folder, checkpoint.memory, resumed_after)
        if federation.model.start:
            node_payload.write(folder.path / checkpoints.FOLDER, federation.model.start)
        folder.take_over(map(_not_scored, past.history[:-1]), checkpoint.seconds, past.repeated)
        status = StatusFile(folder, config, nodes)
        folder.add_round(
            result, weights, strategy.knowledge, strategy.state, checkpoint.memory, nodes, strategy.moments
        )  # fmt: skip
        folder.finish(nodes)
        status.end(COMPLETED, None)
    finally:
        folder.close()
    return folder.path


def _copy_memory(source: Path, target: Path, nodes: Iterable[int], resumed_after: tuple[int, ...]) -> None:
    """Copy the private parts of simulated nodes from one run's folder to another's."""
    for index in nodes:
        number, memory = StateStore(state_store.simulated(source, index), resumed_after).recall()
        StateStore(state_store.simulated(target, index)).remember(number, memory)


def is_trained(path: Path) -> bool:
    """Tell whether a run folder belongs to a finished run that was trained, not rescored."""
    return (path / RESULTS_FILE).is_file() and "scored_again" not in resuming.read_config(path)


def average(folder: Path) -> str:
    """Return the accuracy of a folder's models as text."""
    avg = _results(folder).get("avg")
    return "no domain could be scored" if avg is None else f"avg {avg:.1f}"


def _results(folder: Path) -> dict[str, Any]:
    """Return the results of a run.

    Raises:
        ConfigError: If the file cannot be read, or is no ``results.json``.
    """
    file = folder / RESULTS_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: cannot be read as JSON: {error}") from None
    chosen = content.get("chosen_round") if isinstance(content, dict) else ""
    if not isinstance(content, dict) or not isinstance(chosen, dict | None):
        raise ConfigError(f"{file}: it does not belong to a run")
    for key, value in (("rounds", content.get("rounds")), ("chosen_round.round", (chosen or {}).get("round", 0))):
        if whole(value, 0, MOST_ROUNDS) is None:
            raise ConfigError(f"{file}: {key}: expected a whole number, found {as_found(value)}")
    return content


def _not_scored(result: RoundResult) -> RoundResult:
    """Return a round without its scores, which used other settings; what was chosen and spent stays."""
    kept = (validation.KEY, validation.LOSS, privacy.KEY)
    shown = {key: result.shown[key] for key in kept if key in result.shown}
    return replace(result, accuracy={}, test_loss={}, others={}, spread={}, shown=shown)


def done(checked: Checked, among: Sequence[Path]) -> Path | None:
    """Return the folder of an earlier scoring with the same settings; None if there is none."""
    wanted = checked.config.model_dump(mode="json")
    for path in among:
        if not (path / RESULTS_FILE).is_file():
            continue
        try:
            saved_config = resuming.read_config(path)
        except ConfigError:  # a folder of another run, which does not matter here
            continue
        marks = saved_config.get("scored_again") or {}
        same = marks.get("run_id") == checked.saved_config["run_id"] and marks.get("round") == checked.server_round
        settings = sections_of_run({"resolved": saved_config["resolved"]})
        if same and validate(settings).model_dump(mode="json") == wanted:
            return path
    return None
