"""Scores the models of a finished run again, of its last or kept round, on its nodes, into a new run folder."""

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
from fedshift_app.node import one_time_payload, state_store
from fedshift_app.node.state_store import StateStore
from fedshift_app.run import agreement, checkpoints, resuming, starting
from fedshift_app.run import files as run_files
from fedshift_app.run.checkpoints import Checkpoint, Past
from fedshift_app.run.files import CONFIG_FILE, RESULTS_FILE
from fedshift_app.run.folder import RunFolder, weights_hash
from fedshift_app.run.status import COMPLETED, StatusFile
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found
from fedshift_core.wire.names import DEPLOYMENT
from fedshift_strategies.federation.context import RoundResult
from fedshift_strategies.federation.memory import NodeMemory

OF_IMAGES = {"none", "corruption"}  # values of shift.name that leave the same images to be scored


@dataclass(frozen=True)
class Checked:
    """A finished run that can be scored with other settings. It holds no weights, because many may wait.

    Attributes:
        label: Its label in messages.
        path: The folder of the run.
        config: The configuration of the new folder.
        saved_config: The run's ``config.yaml``.
        server_round: The round after which its models are scored.
        digest: The SHA-256 of the shared weights of that round.
    """

    label: str
    path: Path
    config: RunConfig
    saved_config: Mapping[str, Any]
    server_round: int
    digest: str

    @property
    def marks(self) -> dict[str, Any]:
        """The origin of the models, for the new folder's ``config.yaml``."""
        kept = {key: self.saved_config.get(key) for key in ("run_id", "git", "versions")}
        return {"run": self.path.name, **kept, "round": self.server_round, "weights_sha256": self.digest}


def check(path: Path, arguments: Sequence[str]) -> Checked:
    """Check whether a run can be scored so; the scoring itself checks its images.

    Args:
        path: The folder of a finished run.
        arguments: The keys that differ, as KEY=VALUE.

    Raises:
        ConfigError: If the run is not finished or was deployed, the checkpoint of its last or kept round cannot be
            used or is of other weights than its results, or a key would change what was trained.
    """
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
    given, launch = parse_arguments([f"experiment={path / CONFIG_FILE}", *arguments])
    if launch:
        raise ConfigError(f"{next(iter(launch))}: nothing is launched; give keys of a run's configuration")
    config = resuming.as_kept(configuration.resolve(given, finished=True), kept)
    _refuse_training(path, kept, config)
    results = run_files.results(path)
    server_round = int((results.get("chosen_round") or {}).get("round") or results["rounds"])
    _, checkpoint = _past(path, saved_config, config, server_round)
    digest = weights_hash(checkpoint.weights)
    recorded = results.get("weights_sha256")  # of the last round
    if server_round == results["rounds"] and digest != recorded:
        raise ConfigError(
            f"{path}: the weights of round {server_round} are not those of {RESULTS_FILE}: their SHA-256 is {digest}, "
            f"weights_sha256 is {as_found(recorded)}"
        )
    return Checked(" ".join([path.name, *arguments]), path, config, saved_config, server_round, digest)


def _past(path: Path, saved_config: Mapping[str, Any], config: RunConfig, server_round: int) -> tuple[Past, Checkpoint]:
    """Return the run's state after that round, never after another one.

    Raises:
        ConfigError: If its checkpoint is missing or damaged.
    """
    try:
        past = resuming.look(path, saved_config, config, None, server_round)
    except ConfigError as error:
        raise error.under("rescore") from None
    return past, past.checkpoint


def _refuse_training(path: Path, kept: RunConfig, requested: RunConfig) -> None:
    before, after = (flat(config.model_dump(mode="json")) for config in (kept, requested))
    changed = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
    key = next((key for key in changed if not may_differ(key)), "")
    why, allowed = "changes the training", f"adapt.*, {', '.join(MAY_DIFFER)}"
    if not key and "shift.name" in changed and not {kept.shift.name, requested.shift.name} <= OF_IMAGES:
        key, why, allowed = "shift.name", "tests other images", " and ".join(sorted(OF_IMAGES))
    if key:
        found, wanted = as_found(before.get(key)), as_found(after.get(key))
        raise ConfigError(
            f"{key} is {found} in {path}, requested is {wanted}: this {why}; without training only these may differ: "
            f"{allowed}"
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
    config = checked.config
    past, checkpoint = _past(checked.path, checked.saved_config, config, checked.server_round)
    resuming.check_images(past, config)
    kept_in = checked.path / checkpoints.FOLDER / checkpoints.NODES_FOLDER
    scored: list[tuple[RoundResult, ArrayRecord]] = []
    grid = InlineGrid(client_app.app, past.num_nodes)
    ready = starting.ready(grid, config, past, NAME, lambda *scored_round: scored.append(scored_round))
    strategy, model = ready.strategy, ready.strategy.federation.model
    resumed_after = (*past.resumed_after, checkpoint.server_round)
    strategy.memory = NodeMemory(past.run_id, str(kept_in), resumed_after, dict(checkpoint.memory))
    strategy.score_again(grid, ready.initial, past.history[-1])
    [(result, weights)] = scored
    folder = RunFolder(
        output_dir,
        config,
        engine=NAME,
        personal=model.personal,
        about={
            "command": command,
            "nodes": past.num_nodes,
            "images": past.images,
            "scored_again": checked.marks,
            "arithmetic": ready.settled.train.arithmetic,
            "asked": checked.saved_config.get("asked"),
        },
    )
    nodes = strategy.roster.nodes
    try:
        _copy_memory(kept_in, folder.nodes_folder, checkpoint.memory, resumed_after)
        if model.start:
            one_time_payload.write(folder.path / checkpoints.FOLDER, model.start)
        folder.take_over(map(_not_scored, past.history[:-1]), checkpoint.seconds, past.repeated)
        status = StatusFile(folder, config, nodes)
        folder.add_round(
            result,
            weights,
            knowledge=strategy.knowledge,
            state=strategy.state,
            memory=checkpoint.memory,
            nodes=nodes,
            moments=strategy.moments,
        )
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
    avg = run_files.results(folder).get("avg")
    return "no domain could be scored" if avg is None else f"avg {avg:.1f}"


def _not_scored(result: RoundResult) -> RoundResult:
    """Return a round without its scores, which used other settings; what was chosen and spent stays."""
    kept = (validation.KEY, validation.LOSS, privacy.KEY)
    shown = {key: result.shown[key] for key in kept if key in result.shown}
    return replace(result, accuracy={}, test_loss={}, others={}, spread={}, shown=shown)


def done(checked: Checked, among: Sequence[Path]) -> Path | None:
    """Return the folder of an earlier scoring with the same settings; None if there is none."""
    wanted = checked.config.model_dump(mode="json")
    for path in (path for path in among if (path / RESULTS_FILE).is_file()):
        try:
            saved_config = resuming.read_config(path)
        except ConfigError:  # a folder of another run, which does not matter here
            continue
        marks = saved_config.get("scored_again") or {}
        same = all(marks.get(key) == checked.marks[key] for key in ("run_id", "round"))
        settings = sections_of_run({"resolved": saved_config["resolved"]})
        if same and validate(settings).model_dump(mode="json") == wanted:
            return path
    return None
