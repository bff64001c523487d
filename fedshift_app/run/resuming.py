"""Continues an interrupted run (``resume=FOLDER``); every obstacle is reported before anything starts."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedshift_app.config import resolving as configuration
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import data as node_data
from fedshift_app.node import state_store
from fedshift_app.node.state_store import StateStore
from fedshift_app.run import changes, checkpoints, config_file, model_selection
from fedshift_app.run.checkpoints import Checkpoint, Damaged, Past
from fedshift_app.run.files import CONFIG_FILE, LOCK_FILE, METRICS_FILE, RESULTS_FILE, full_lines
from fedshift_app.run.summary import round_of
from fedshift_app.run.versions import versions
from fedshift_core.atomic_io import InUse, Lock
from fedshift_core.errors import ConfigError, FederationError, FedShiftError
from fedshift_core.features import on_in, value_of
from fedshift_core.limits import MOST_ROUNDS, as_found, whole
from fedshift_core.paths import user_path
from fedshift_core.plural import plural
from fedshift_core.wire.names import DEPLOYMENT
from fedshift_core.yaml_files import read_yaml
from fedshift_strategies.federation.context import RoundResult
from fedshift_strategies.federation.roster import Node

log = logging.getLogger("fedshift")


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
    folder_name, server_round = str(keys.pop("resume", "")), _round(keys.pop("round", 0))
    allowed = bool(keys.pop(changes.ALLOW_CHANGED, False))
    if not folder_name:
        _check_new(server_round, allowed)
        return configuration.resolve(keys), None
    path = user_path(folder_name, "resume")
    recorded = read_config(path)
    config = configuration.resolve(keys | {"experiment": keys.get("experiment") or str(path / CONFIG_FILE)})
    trained = checkpoints.last_config(path / checkpoints.FOLDER, server_round)
    kept = changes.as_trained(trained or recorded, config)
    config = as_kept(config, kept)
    has_more_rounds = config.rounds > kept.rounds
    if (path / RESULTS_FILE).exists() and not has_more_rounds:
        advice = f"; to repeat the rounds after {server_round}, remove it" if server_round else ""
        raise ConfigError(f"resume: the run in {path} is finished", f"see {path / RESULTS_FILE}{advice}")
    if hold:
        _compare_versions(recorded, kept)
    changes.found(path, kept, config, allowed=allowed)  # first: a checkpoint is looked at by these settings
    if has_more_rounds:
        _check_more_rounds(path, kept, config)
    lock = _locked(path)
    try:
        past = look(path, recorded, config, lock if hold else None, server_round)
        if past.checkpoint is not None and past.checkpoint.config:
            kept = changes.as_trained(past.checkpoint.config, config)
        past = changes.noted(past, changes.found(path, kept, config, allowed=allowed))
        if has_more_rounds and model_selection.is_over(kept, past.history):
            raise ConfigError(
                f"resume: the run in {path} ended after round {past.completed} of {kept.rounds} by "
                f"evaluate.patience={kept.evaluate.patience}; with rounds={config.rounds} it would have, too"
            )
    except BaseException:
        lock.release()
        raise
    if not hold:
        lock.release()
    return config, past


def _check_new(server_round: int, allowed: bool) -> None:
    """Refuse keys that only a run to continue has.

    Raises:
        ConfigError: With the key.
    """
    if server_round:
        raise ConfigError(f"round: {server_round} needs resume=FOLDER; the number of a run's rounds is rounds=N")
    if allowed:
        raise ConfigError(f"{changes.ALLOW_CHANGED}: needs resume=FOLDER; a new run has the settings that it is given")


def _check_more_rounds(path: Path, kept: RunConfig, config: RunConfig) -> None:
    """Refuse more rounds than the run has where it trained none, or where its rounds depend on their number.

    Raises:
        ConfigError: With both numbers and what depends on them.
    """
    if not kept.rounds:
        raise ConfigError(f"resume: the run in {path} has rounds=0, there is no round to go on from; start a new run")
    if reason := _use_of_rounds(config):
        raise ConfigError(f"resume: rounds is {kept.rounds} there, requested is {config.rounds}: {reason}")


def _locked(path: Path) -> Lock:
    try:
        return Lock(path / LOCK_FILE)
    except InUse as holder:
        raise ConfigError(f"resume: the run in {path} is still in progress in {holder}") from None
    except OSError as error:
        raise ConfigError(f"resume: cannot write to {path}: {error.strerror}") from None


def _round(value: Any) -> int:
    number = whole(value, 0, MOST_ROUNDS)
    if number is None:
        raise ConfigError(f"round: expected a whole number from 0 to {MOST_ROUNDS}, found {as_found(value)}")
    return number


def as_kept(config: RunConfig, kept: RunConfig) -> RunConfig:
    """Return the configuration with the kept run's number format, unless it requests another."""
    if config.train.arithmetic or config.train.precision != kept.train.precision:
        return config
    return config.model_copy(update={"train": config.train.model_copy(update={"arithmetic": kept.train.arithmetic})})


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
    nodes_before = {node.index: node for node in past.checkpoint.nodes} if past.checkpoint else {}
    for node in nodes:
        if node.index not in nodes_before:
            continue
        node_before = nodes_before.pop(node.index)
        if node.domains != node_before.domains:
            now, before = (", ".join(map(repr, each.domains)) for each in (node, node_before))
            raise FederationError(f"resume: node {node.index} holds {now}, it held {before}")
        if node.public != node_before.public:
            raise FederationError(
                f"resume: {node} has a different public set of {plural(node.num_public, 'image')}; it had "
                f"{node_before.num_public}"
            )
        if node.class_counts != node_before.class_counts:
            message = f"{node} has other images than before: now {node.num_examples}, before {node_before.num_examples}"
            if past.engine != DEPLOYMENT:
                raise FederationError(f"resume: {message}")
            fields = {"event": "other_images", "node": node.index, "domain": node.domain}
            log.warning("%s", message, extra=fields)
    for missing in nodes_before.values():
        fields = {"event": "missing_node", "node": missing.index, "domain": missing.domain}
        log.warning("%s is not connected, the run continues without it", missing, extra=fields)
    return list(nodes_before.values())


def read_config(path: Path) -> dict[str, Any]:
    """Read ``config.yaml`` of a run folder."""
    file = path / CONFIG_FILE
    if not file.is_file():
        raise ConfigError(f"resume: {path} is not the folder of a run: it has no {CONFIG_FILE}")
    recorded = read_yaml(file)
    config_file.check(recorded, f"resume: {file}", ("resolved", "run_id", "engine", "nodes"))
    return recorded


def _compare_versions(recorded: Mapping[str, Any], config: RunConfig) -> None:
    before, after = dict(recorded.get("versions", {})), versions(config)
    differing = [f"{name} {before.get(name)}, now {now}" for name, now in after.items() if before.get(name) != now]
    if differing:
        log.warning("the run was made with other versions, so its numbers may change: %s", "; ".join(differing))


def _use_of_rounds(config: RunConfig) -> str:
    """Return the part of a run that depends on the number of its rounds; empty if none does."""
    if config.train.needs_rounds:
        return f"train.schedule={config.train.schedule} depends on it"
    on = [(feature, feature.rounds_key) for feature, _ in on_in(config) if feature.rounds_key]
    for feature, key in on:
        if value_of(config, key) is not None:
            return f"{feature.setting(config, key)} depends on it"
    method = config.declared
    reason = method.strategy_class().uses_rounds(config.params())
    return f"the method {method.name!r} depends on it, {reason}" if reason else ""


def look(path: Path, recorded: Mapping[str, Any], config: RunConfig, lock: Lock | None, server_round: int) -> Past:
    """Return the run with its checkpoint of ``server_round``, or for 0 with the last usable one."""
    resumed_after = tuple(int(resumed["after_round"]) for resumed in recorded.get("resumed", ()))
    past = Past(
        path=path,
        run_id=str(recorded["run_id"]),
        engine=str(recorded["engine"]),
        num_nodes=int(recorded["nodes"]),
        images=dict(recorded.get("images", {})),  # older versions have none, so they are not compared
        resumed_after=resumed_after,
        checkpoint=None,
        history=[],
        lock=lock,
    )
    lines = full_lines(path / METRICS_FILE)
    damaged = []
    kept = checkpoints.rounds(path / checkpoints.FOLDER)
    if server_round and server_round not in kept:
        raise ConfigError(
            f"round: {server_round} is not kept in {path}; kept are {', '.join(map(str, kept)) or 'none'}"
        )
    for number in [server_round] if server_round else kept:
        try:
            usable = _with_checkpoint(past, config, lines, number)
        except Damaged as damage:
            damaged.append(str(damage))
            continue
        if damaged and lock is not None:
            log.warning(
                "a damaged checkpoint is skipped, the run continues after round %d: %s", number, "; ".join(damaged)
            )
        return _counted(usable, recorded, len(lines))
    if damaged and server_round:
        raise ConfigError(f"round: the checkpoint of round {server_round} cannot be used: {damaged[0]}")
    if damaged:
        reasons = "; ".join(damaged).replace(f"{path}/", "")
        raise ConfigError(f"resume: no checkpoint in {path} can be used: {reasons}")
    if len(lines) > 1:
        raise ConfigError(f"resume: {path} has {plural(len(lines), 'full round')} in {METRICS_FILE}, but no checkpoint")
    return _counted(past, recorded, len(lines))


def _with_checkpoint(past: Past, config: RunConfig, lines: Sequence[Mapping[str, Any]], number: int) -> Past:
    """Return the run with its checkpoint of a round, and the rounds of these lines up to it.

    Raises:
        Damaged: If it cannot be used, or lacks what belongs to it: private parts, the best round, lines of rounds.
    """
    checkpoint = checkpoints.load(past.path / checkpoints.FOLDER, number, (checkpoints.FORMAT,))
    _check_memory(past, checkpoint)
    history = list(map(round_of, lines[:number]))
    _check_chosen(past, config, history)
    if len(lines) < number:
        raise Damaged(f"{past.path / METRICS_FILE} lacks round {len(lines) + 1}")
    return replace(past, checkpoint=checkpoint, history=history)


def _counted(past: Past, recorded: Mapping[str, Any], full_rounds: int) -> Past:
    """Return the run with the number of its rounds that are begun once more, now and when it was resumed before.

    The round after the last full one is among them where the run did not finish: nodes may have answered in it.
    """
    begun = full_rounds + (not (past.path / RESULTS_FILE).exists())
    repeats = max(min(begun, int(recorded["resolved"]["rounds"])) - past.completed, 0)
    before = sum(int(resumed.get("repeats", 0)) for resumed in recorded.get("resumed", ()))
    return replace(past, repeats=repeats, repeated=before + repeats)


def _check_chosen(past: Past, config: RunConfig, history: Sequence[RoundResult]) -> None:
    """Check the checkpoint of the best round by validation, if the run keeps it.

    Raises:
        Damaged: If it is missing or has changed.
    """
    kept = model_selection.best(history) if config.keep == model_selection.BEST else None
    if kept is not None and kept.server_round != len(history):
        _check_memory(past, checkpoints.load(past.path / checkpoints.FOLDER, kept.server_round, (checkpoints.FORMAT,)))


def _check_memory(past: Past, checkpoint: Checkpoint) -> None:
    """Check the private parts of simulated nodes that belong to a checkpoint.

    Raises:
        Damaged: If those of a node are missing or have changed.
    """
    if past.engine == DEPLOYMENT:
        return  # the nodes hold them, and report if they do not
    base = past.path / checkpoints.FOLDER / checkpoints.NODES_FOLDER
    resumed_after = (*past.resumed_after, checkpoint.server_round)
    for index, expected in checkpoint.memory.items():
        try:
            kept, _ = StateStore(state_store.simulated(base, index), resumed_after).recall()
        except FedShiftError as error:
            raise Damaged(str(error)) from None
        if kept < expected:
            raise Damaged(f"{state_store.simulated(base, index)} lacks the private parts of round {expected}")
