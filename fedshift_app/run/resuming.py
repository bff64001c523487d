"""Continues an interrupted run (``resume=FOLDER``); every obstacle is reported before anything starts.

The settings with which a run goes on are held against those of its last round, which the checkpoint has recorded.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedshift_app.config import plugins
from fedshift_app.config import resolving as configuration
from fedshift_app.config.sections import RunConfig
from fedshift_app.config.validating import sections_of_run, validate
from fedshift_app.node import data as node_data
from fedshift_app.node import state_store
from fedshift_app.run import agreement, checkpoints, config_file, model_selection
from fedshift_app.run.checkpoints import Checkpoint, Damaged, Past
from fedshift_app.run.files import CONFIG_FILE, LOCK_FILE, METRICS_FILE, RESULTS_FILE, changed_text, full_lines
from fedshift_app.run.summary import round_of
from fedshift_app.run.versions import versions
from fedshift_core.atomic_io import InUse, Lock
from fedshift_core.errors import ConfigError, FederationError, FedShiftError
from fedshift_core.features import on_in, value_of
from fedshift_core.limits import MOST_ROUNDS, as_found, some, whole
from fedshift_core.paths import user_path
from fedshift_core.plural import plural
from fedshift_core.wire.names import DEPLOYMENT
from fedshift_strategies.federation.roster import Node

log = logging.getLogger("fedshift")

ALLOW_CHANGED = "allow-changed"
#: Settings that may change between two rounds; the network, its images and its number format may not.
CHANGEABLE = (
    "train.",
    "method.",
    "evaluate.every",
    "evaluate.fraction",
    "evaluate.last",
    "evaluate.patience",
    "federation.",
)
FIXED = ("method.name", "train.precision", "train.arithmetic", "federation.secure_sums")
MOST_NAMED = 3  # settings of a message


def resolve(flat: Mapping[str, Any], *, hold: bool) -> tuple[RunConfig, Past | None]:
    """Build and check the configuration of a run, new or continued.

    Args:
        flat: The run-config keys. With ``resume`` and without ``experiment`` all else is as in the folder. ``round``
            goes back to an earlier round that is kept, 0 to the last one. ``rounds`` may be more than in the folder.
            With ``allow-changed`` other settings than those of the last round are taken and noted.
        hold: Keep the folder's lock, to continue the run; otherwise only check, without warnings.

    Returns:
        The configuration, and the run to continue; None for a new run.

    Raises:
        ConfigError: As ``config.resolve``, and if the run of the folder cannot be continued with these keys.
    """
    keys = dict(flat)
    folder_name, given = str(keys.pop("resume", "")), keys.pop("round", 0)
    allowed = bool(keys.pop(ALLOW_CHANGED, False))
    if (server_round := whole(given, 0, MOST_ROUNDS)) is None:
        raise ConfigError(f"round: expected a whole number from 0 to {MOST_ROUNDS}, found {as_found(given)}")
    if not folder_name:
        return configuration.resolve(flat), None  # which refuses the other two
    path = user_path(folder_name, "resume")
    recorded = read_config(path)
    config = configuration.resolve(keys | {"experiment": keys.get("experiment") or str(path / CONFIG_FILE)})
    if (path / RESULTS_FILE).exists() and config.rounds <= recorded["resolved"].get("rounds", 0):
        advice = f"; to repeat the rounds after {server_round}, remove it" if server_round else ""
        raise ConfigError(f"resume: the run in {path} is finished", f"see {path / RESULTS_FILE}{advice}")
    try:
        lock = Lock(path / LOCK_FILE)
    except InUse as holder:
        raise ConfigError(f"resume: the run in {path} is still in progress in {holder}") from None
    except OSError as error:
        raise ConfigError(f"resume: cannot write to {path}: {error.strerror}") from None
    try:
        past = look(path, recorded, config, lock if hold else None, server_round)
        kept = _as_trained(past.checkpoint.config or recorded, config)
        config = as_kept(config, kept)
        if hold:
            _compare_versions(recorded, kept)
        past.changed = _noted(past, _changes(path, kept, config, allowed=allowed))
        if config.rounds > kept.rounds and (reason := _needs_its_rounds(past, kept, config)):
            raise ConfigError(f"resume: rounds is {kept.rounds} there, requested is {config.rounds}: {reason}")
    except BaseException:
        lock.release()
        raise
    if not hold:
        lock.release()
    return config, past


def read_config(path: Path) -> dict[str, Any]:
    """Read ``config.yaml`` of a run folder."""
    return config_file.read(path, "resume", ("resolved", "run_id", "engine", "nodes"))


def _needs_its_rounds(past: Past, kept: RunConfig, config: RunConfig) -> str:
    """Return why a run cannot have more rounds than it has; empty if it can."""
    if not kept.rounds:
        return "it trained nothing, there is no round to go on from; start a new run"
    if config.train.needs_rounds:
        return f"train.schedule={config.train.schedule} depends on it"
    for feature, _ in on_in(config):
        if feature.rounds_key and value_of(config, feature.rounds_key) is not None:
            return f"{feature.setting(config, feature.rounds_key)} depends on it"
    method = config.declared
    if reason := method.strategy_class().uses_rounds(config.params()):
        return f"the method {method.name!r} depends on it, {reason}"
    if model_selection.is_over(kept, past.history):
        return f"it ended after round {past.completed} by evaluate.patience={kept.evaluate.patience}, and would again"
    return ""


def as_kept(config: RunConfig, kept: RunConfig) -> RunConfig:
    """Return the configuration with the kept run's number format, unless it requests another."""
    if config.train.arithmetic or config.train.precision != kept.train.precision:
        return config
    return config.with_values("train", arithmetic=kept.train.arithmetic)


def _as_trained(recorded: Mapping[str, Any], config: RunConfig) -> RunConfig:
    """Return the configuration that a checkpoint has recorded, or ``config.yaml`` of a run without one.

    Raises:
        ConfigError: If the run's own Python files are not those of ``config``, with which it goes on.
    """
    files = [file for file in config.plugins if Path(file).suffix == ".py"]
    if (before := plugins.code(recorded)) and before != [plugins.sha256(Path(file)) for file in files]:
        raise ConfigError(
            f"resume: plugins are {as_found(list(recorded['resolved']['plugins']))} there with other code than "
            f"{as_found(files)} have; a run goes on with the code that it began with"
        )
    return validate(sections_of_run(recorded) | {"plugins": list(config.plugins)})


def _changes(path: Path, kept: RunConfig, config: RunConfig, *, allowed: bool) -> dict[str, list[Any]]:
    """Return the settings that are not those of the last round, by key.

    Raises:
        ConfigError: If they are not ``allowed`` to differ, or one must not: what is trained would be another network
            on other images, or a promise of privacy be about neither part of the run.
    """
    changes = agreement.differences(*(each.model_dump(mode="json") for each in (kept, config)))
    private = kept.privacy.name != "none"
    fixed = [key for key in changes if private or not key.startswith(CHANGEABLE) or key in FIXED]
    if not fixed and (allowed or not changes):
        return changes
    named = fixed if allowed else changes
    texts = [f"{key} is {as_found(changes[key][0])} there, requested is {as_found(changes[key][1])}" for key in named]
    texts.sort(key=lambda text: (not text.startswith("method.name "), len(text)))  # short ones first
    raise ConfigError(
        f"resume: the run in {path} has other settings: {some(texts, MOST_NAMED, '; ')}",
        f"within a run these cannot change: start a new one, or restore {CONFIG_FILE}"
        if fixed
        else "to go on with the new values, which its results then name: --allow-changed, "
        f"or {ALLOW_CHANGED}=true in the --run-config of flwr run",
    )


def _noted(past: Past, changes: Mapping[str, Sequence[Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return all changes of settings between rounds, those of the next round last; say them where the run goes on."""
    changed = tuple(past.checkpoint.changed)
    if changes:
        changed += ({"from_round": past.completed + 1, "settings": dict(changes)},)
        if past.lock is not None:
            log.warning("%s", changed_text(changed), extra={"event": "changed"})
    return changed


def _compare_versions(recorded: Mapping[str, Any], config: RunConfig) -> None:
    before, after = dict(recorded.get("versions", {})), versions(config)
    differing = [f"{name} {before.get(name)}, now {now}" for name, now in after.items() if before.get(name) != now]
    if differing:
        log.warning("the run was made with other versions, so its numbers may change: %s", "; ".join(differing))


def check_engine(past: Past, engine: str) -> None:
    """Refuse to simulate a deployed run, or to deploy a simulated one.

    Raises:
        ConfigError: With both engines.
    """
    if (past.engine == DEPLOYMENT) != (engine == DEPLOYMENT):
        raise ConfigError(
            f"resume: the run in {past.path} is a {past.engine}, requested is {engine}; simulated and real nodes hold "
            "different images"
        )


def check_number(past: Past, nodes: int) -> None:
    """Refuse a different number of simulated nodes.

    Raises:
        ConfigError: With both numbers.
    """
    if past.engine != DEPLOYMENT and nodes != past.num_nodes:
        raise ConfigError(f"resume: the run in {past.path} has {plural(past.num_nodes, 'node')}, found {nodes}")


def check_images(past: Past, config: RunConfig) -> None:
    """Refuse to continue a simulation on changed images; a real node checks its own.

    Raises:
        ConfigError: With the domains and splits that have changed.
        DataError: If images are missing or broken.
    """
    if past.engine == DEPLOYMENT or not past.images:
        return
    node_data.forget()  # so that what is read from here on is what is compared here
    if changed := changed_images(past.images, node_data.fingerprints(config)):
        raise ConfigError(
            f"resume: the images of {', '.join(changed)} have changed since the run in {past.path} began; "
            "restore them (data-dir may name another folder), or start a new run"
        )


def changed_images(recorded: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the domains and splits with other images than before, also those that only one of both has.

    Args:
        recorded: The fingerprints of a run (``images`` in its ``config.yaml``).
        now: Those of the images as they are (``node.data.fingerprints``).
    """
    before, after = (
        {f"{domain} {split}": mark for domain, marks in images.items() for split, mark in marks.items()}
        for images in (recorded, now)
    )
    return [part for part in before | after if before.get(part) != after.get(part)]


def check_nodes(past: Past, nodes: Sequence[Node]) -> list[Node]:
    """Refuse a federation whose nodes differ from those of the run; return those of before that are not here.

    In a deployment images and nodes may change, which is only logged.

    Raises:
        FederationError: With the first node that differs.
    """
    nodes_before = {node.index: node for node in past.checkpoint.nodes}
    for node in nodes:
        before = nodes_before.pop(node.index, node)
        if node.domains != before.domains:
            now, held = (", ".join(map(repr, each.domains)) for each in (node, before))
            raise FederationError(f"resume: node {node.index} holds {now}, it held {held}")
        if node.public != before.public:
            images = plural(node.num_public, "image")
            raise FederationError(f"resume: {node} has a different public set of {images}; it had {before.num_public}")
        if node.class_counts != before.class_counts:
            message = f"{node} has other images than before: now {node.num_examples}, before {before.num_examples}"
            if past.engine != DEPLOYMENT:
                raise FederationError(f"resume: {message}")
            _warn("other_images", node, message)
    for missing in nodes_before.values():
        _warn("missing_node", missing, f"{missing} is not connected, the run continues without it")
    return list(nodes_before.values())


def _warn(event: str, node: Node, message: str) -> None:
    log.warning("%s", message, extra={"event": event, "node": node.index, "domain": node.domain})


def look(path: Path, recorded: Mapping[str, Any], config: RunConfig, lock: Lock | None, server_round: int) -> Past:
    """Return the run with its checkpoint of ``server_round``, or for 0 with the last usable one.

    Args:
        path: The run folder.
        recorded: The content of ``config.yaml``.
        config: The configuration with which it goes on.
        lock: The lock of the process that continues the run; None where it is only looked at, without warnings.
        server_round: The round; 0 for the last one.

    Raises:
        ConfigError: If there is none, but rounds.
    """
    resumed = recorded.get("resumed", ())
    past = Past(
        path=path,
        run_id=str(recorded["run_id"]),
        engine=str(recorded["engine"]),
        num_nodes=int(recorded["nodes"]),
        images=recorded.get("images") or {},
        resumed_after=tuple(int(each["after_round"]) for each in resumed),
        lock=lock,
    )
    lines, kept = full_lines(path / METRICS_FILE), checkpoints.rounds(path / checkpoints.FOLDER)
    if server_round and server_round not in kept:
        raise ConfigError(
            f"round: {server_round} is not kept in {path}; kept are {', '.join(map(str, kept)) or 'none'}"
        )
    damaged = _take_up(past, config, lines, [server_round] if server_round else kept)
    reasons = "; ".join(damaged).replace(f"{path}/", "")
    if not past.completed and (damaged or len(lines) > 1):
        why = reasons or f"{plural(len(lines), 'full round')} in {METRICS_FILE}, but no checkpoint"
        raise ConfigError(f"{'round' if server_round else 'resume'}: no checkpoint in {path} can be used: {why}")
    if damaged and lock is not None:
        log.warning("a damaged checkpoint is skipped, the run continues after round %d: %s", past.completed, reasons)
    # The round after the last full one is begun once more where the run did not finish: nodes may have answered in it.
    begun = len(lines) + (not (path / RESULTS_FILE).exists())
    past.repeats = max(min(begun, int(recorded["resolved"]["rounds"])) - past.completed, 0)
    past.repeated = past.repeats + sum(int(each.get("repeats", 0)) for each in resumed)
    return past


def _take_up(past: Past, config: RunConfig, lines: Sequence[Mapping[str, Any]], numbers: Iterable[int]) -> list[str]:
    """Give the run the first of these checkpoints that can be used, with the rounds up to it.

    It cannot if it lacks what belongs to it: private parts, the best round that the run keeps, lines of rounds.

    Returns:
        What is wrong with those before it.
    """
    damaged = []
    for number in numbers:
        try:
            checkpoint = _with_memory(past, number)
            history = list(map(round_of, lines[:number]))
            best = model_selection.best(history) if config.keep == model_selection.BEST else None
            if best is not None and best.server_round != len(history):
                _with_memory(past, best.server_round)
            if len(lines) < number:
                raise Damaged(f"{past.path / METRICS_FILE} lacks round {len(lines) + 1}")
        except Damaged as damage:
            damaged.append(str(damage))
            continue
        past.checkpoint, past.history = checkpoint, history
        break
    return damaged


def _with_memory(past: Past, server_round: int) -> Checkpoint:
    """Return the checkpoint of a round, once the private parts of simulated nodes that belong to it are checked.

    Raises:
        Damaged: If it cannot be used, or those of a node are missing or have changed.
    """
    folder = past.path / checkpoints.FOLDER
    checkpoint = checkpoints.load(folder, server_round)
    resumed_after = (*past.resumed_after, server_round)
    # Real nodes hold theirs, and report if they do not.
    for index, expected in checkpoint.memory.items() if past.engine != DEPLOYMENT else ():
        place = state_store.simulated(folder / checkpoints.NODES_FOLDER, index)
        try:
            kept, _ = state_store.StateStore(place, resumed_after).recall()
        except FedShiftError as error:
            raise Damaged(str(error)) from None
        if kept < expected:
            raise Damaged(f"{place} lacks the private parts of round {expected}")
    return checkpoint
