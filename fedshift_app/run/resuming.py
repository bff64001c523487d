"""``resume=FOLDER``: continuing an interrupted run; whatever stands against it is told before anything starts."""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedshift_app.config import registry
from fedshift_app.config import resolving as configuration
from fedshift_app.config.keys import flat
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import data as node_data
from fedshift_app.node import state_store
from fedshift_app.node.setup import DEPLOYMENT
from fedshift_app.node.state_store import Shelf
from fedshift_app.run import checkpoints, model_selection
from fedshift_app.run import config_file as told_of_run
from fedshift_app.run.checkpoints import Checkpoint, Damaged
from fedshift_app.run.folder import CONFIG_FILE, LOCK_FILE, METRICS_FILE, RESULTS_FILE, Past, versions
from fedshift_core.atomic_io import InUse, Lock
from fedshift_core.errors import ConfigError, FederationError, FedShiftError
from fedshift_core.limits import MOST_LINE, MOST_ROUNDS, as_found, few, whole
from fedshift_core.paths import user_path
from fedshift_core.yaml_files import read_yaml
from strategies.federation.context import RoundResult
from strategies.federation.evaluation import ClientScores
from strategies.federation.roster import Node

log = logging.getLogger("fedshift")

#: Keys that may differ: they decide no number of a round that succeeds.
FREE = (
    "dataset.data_dir", "dataset.download", "dataset.classes_stated", "federation.node_timeout",
    "federation.round_timeout", "model.weights", "profile", "tracking", "evaluate.figures", "keep_rounds",
)  # fmt: skip
_BELOW_ALL = 0.9999  # a share of the test images that is rounded to 1 is still below


def resolve(flat: Mapping[str, Any], *, hold: bool) -> tuple[RunConfig, Past | None]:
    """Build and check the configuration of a run, new or continued.

    Args:
        flat: The run-config keys. With ``resume`` and without ``experiment`` all else is as in the folder. ``round``
            goes back to an earlier round that is kept, 0 to the last one. ``rounds`` may be more than there.
        hold: Keep the folder's lock, to continue the run; otherwise only look, and warn of nothing.

    Returns:
        The configuration, and what is to be continued, None for a new run.

    Raises:
        ConfigError: As ``config.resolve``; and if the folder cannot be continued so.
    """
    given = dict(flat)
    named, server_round = str(given.pop("resume", "")), _round(given.pop("round", 0))
    if not named:
        if server_round:
            raise ConfigError(f"round: {server_round} needs resume=FOLDER; the number of a run's rounds is rounds=N")
        return configuration.resolve(given), None
    path = user_path(named, "resume")
    told = read_config(path)
    config = configuration.resolve(given | {"experiment": given.get("experiment") or str(path / CONFIG_FILE)})
    kept = configuration.validate(configuration.as_it_ran(told))
    config = as_kept(config, kept)
    longer = config.rounds > kept.rounds
    if (path / RESULTS_FILE).exists() and not longer:
        again = f"; to do the rounds after {server_round} again, remove it" if server_round else ""
        raise ConfigError(f"resume: the run in {path} is finished", f"see {path / RESULTS_FILE}{again}")
    if hold:
        _compare_versions(told, kept)
    _refuse_differences(path, kept, config)
    if longer and (why := _goes_by_rounds(config)):
        raise ConfigError(f"resume: rounds is {kept.rounds} there, asked is {config.rounds}: {why}")
    try:
        lock = Lock(path / LOCK_FILE)
    except InUse as holder:
        raise ConfigError(f"resume: the run in {path} is still going on in {holder}") from None
    except OSError as error:
        raise ConfigError(f"resume: cannot write to {path}: {error.strerror}") from None
    try:
        past = look(path, told, config, lock if hold else None, server_round)
        if longer and model_selection.is_over(kept, past.history):
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


def _round(value: Any) -> int:
    number = whole(value, 0, MOST_ROUNDS)
    if number is None:
        raise ConfigError(f"round: expected a whole number from 0 to {MOST_ROUNDS}, found {as_found(value)}")
    return number


def as_kept(config: RunConfig, kept: RunConfig) -> RunConfig:
    """Return the configuration with the arithmetic of the run that goes on, where it asks for none."""
    if config.train.arithmetic or config.train.precision != kept.train.precision:
        return config
    return config.model_copy(update={"train": config.train.model_copy(update={"arithmetic": kept.train.arithmetic})})


def check_engine(past: Past, engine: str) -> None:
    """Refuse to simulate what was deployed, and the other way round.

    Raises:
        ConfigError: With both engines.
    """
    if (past.engine == DEPLOYMENT) != (engine == DEPLOYMENT):
        raise ConfigError(
            f"resume: the run in {past.path} is a {past.engine}, asked is {engine}; simulated and real nodes hold "
            "different images"
        )


def check_number(past: Past, nodes: int) -> None:
    """Refuse another number of simulated nodes.

    Raises:
        ConfigError: With both numbers.
    """
    if past.engine != DEPLOYMENT and nodes != past.num_nodes:
        raise ConfigError(f"resume: the run in {past.path} has {past.num_nodes} nodes, found {nodes}")


def check_images(past: Past, config: RunConfig) -> None:
    """Refuse a simulation on other images than before; those of real nodes are on the nodes.

    Raises:
        ConfigError: With the domain and split that has changed.
        DataError: If images are missing or broken.
    """
    if past.engine == DEPLOYMENT or not past.images:
        return
    now = node_data.fingerprints(config)
    changed = [
        f"{domain} {split}"
        for domain, marks in past.images.items()
        for split, mark in marks.items()
        if now.get(domain, {}).get(split) != mark
    ]
    if changed:
        raise ConfigError(
            f"resume: the images of {', '.join(changed)} are not those that the run in {past.path} began with; "
            "bring those back (data-dir may name another folder), or start a new run"
        )


def check_nodes(past: Past, nodes: Sequence[Node]) -> None:
    """Refuse a federation whose nodes are others than those of the run.

    In a deployment images may come and go, and so may nodes; that is only told.

    Raises:
        FederationError: With the first node that is another.
    """
    before = {node.index: node for node in past.checkpoint.nodes} if past.checkpoint else {}
    for node in nodes:
        if node.index not in before:
            continue
        was = before.pop(node.index)
        if node.domain != was.domain:
            raise FederationError(f"resume: node {node.index} holds {node.domain!r}, it held {was.domain!r}")
        if node.public != was.public:
            raise FederationError(
                f"resume: {node} has another public set than before, of {node.num_public} images; it had "
                f"{was.num_public}"
            )
        if node.class_counts != was.class_counts:
            told = f"{node} has other images than before: {node.num_examples}, it had {was.num_examples}"
            if past.engine != DEPLOYMENT:
                raise FederationError(f"resume: {told}")
            fields = {"event": "other_images", "node": node.index, "domain": node.domain}
            log.warning("%s", told, extra=fields)
    for gone in before.values():
        fields = {"event": "missing_node", "node": gone.index, "domain": gone.domain}
        log.warning("%s is not here, the run goes on without it", gone, extra=fields)


def read_config(path: Path) -> dict[str, Any]:
    """Read ``config.yaml`` of a run folder."""
    file = path / CONFIG_FILE
    if not file.is_file():
        raise ConfigError(f"resume: {path} is not the folder of a run: it has no {CONFIG_FILE}")
    told = read_yaml(file)
    told_of_run.check(told, f"resume: {file}", ("resolved", "run_id", "engine", "nodes"))
    return told


def _compare_versions(told: Mapping[str, Any], config: RunConfig) -> None:
    before, after = dict(told.get("versions", {})), versions(config)
    differing = [f"{name} {before.get(name)}, now {now}" for name, now in after.items() if before.get(name) != now]
    if differing:
        log.warning("the run was made with other versions, its numbers may change: %s", "; ".join(differing))


def _goes_by_rounds(config: RunConfig) -> str:
    """Return what of a run goes by the number of its rounds; empty if nothing does."""
    if config.train.needs_rounds:
        return f"train.schedule={config.train.schedule} goes by it"
    if config.aggregation.needs_rounds:
        return f"aggregation.weights={config.aggregation.weights} goes by it"
    method = registry.get(config.method["name"])
    why = method.strategy_class().uses_rounds(config.server_params())
    return f"the method {method.name!r} goes by it, {why}" if why else ""


def _refuse_differences(path: Path, kept: RunConfig, asked: RunConfig) -> None:
    there, here = (flat(config.model_dump(mode="json")) for config in (kept, asked))
    told = [
        f"{key} is {as_found(there.get(key))} there, asked is {as_found(here.get(key))}"
        for key in sorted(there.keys() | here.keys())
        if key not in FREE
        and there.get(key) != here.get(key)
        and not (key == "rounds" and asked.rounds > kept.rounds)
        # What was fetched is known of the run alone.
        and not (key == "model.weights_sha256" and not here.get(key))
    ]
    if told:
        told.sort(key=lambda one: (not one.startswith("method.name "), len(one)))  # as many as a line holds
        line = f"resume: the run in {path} is another one: {told[0]}"
        for i, one in enumerate(told[1:], start=1):
            if len(line) + len(one) > MOST_LINE - len("; ; and 99 more"):
                line += f"; and {len(told) - i} more"
                break
            line += f"; {one}"
        raise ConfigError(line)


def look(path: Path, told: Mapping[str, Any], config: RunConfig, lock: Lock | None, server_round: int) -> Past:
    """Find the checkpoint from which the run goes on: that of ``server_round``, or for 0 the last that can be used."""
    resumed_after = tuple(int(resumed["after_round"]) for resumed in told.get("resumed", ()))
    past = Past(
        path=path, run_id=str(told["run_id"]), engine=str(told["engine"]), num_nodes=int(told["nodes"]),
        images=dict(told.get("images", {})),  # of an older version: none, so they are not compared
        resumed_after=resumed_after, checkpoint=None, history=[], lock=lock,
    )  # fmt: skip
    lines = full_lines(path / METRICS_FILE)
    damaged = []
    kept = checkpoints.rounds(path / checkpoints.FOLDER)
    if server_round and server_round not in kept:
        raise ConfigError(
            f"round: {server_round} is not kept in {path}; kept are {', '.join(map(str, kept)) or 'none'}"
        )
    for number in [server_round] if server_round else kept:
        try:
            found = checkpoints.load(path / checkpoints.FOLDER, number, (checkpoints.FORMAT,))
            _check_memory(past, found)
            _check_chosen(past, config, [round_result(line, found.nodes, config) for line in lines[:number]])
            if len(lines) < number:
                raise Damaged(f"{path / METRICS_FILE} lacks round {len(lines) + 1}")
        except Damaged as reason:
            damaged.append(str(reason))
            continue
        if damaged and lock is not None:
            log.warning("a damaged checkpoint is left out, round %d serves: %s", number, "; ".join(damaged))
        history = [round_result(line, found.nodes, config) for line in lines[:number]]
        return replace(past, checkpoint=found, history=history)
    if damaged and server_round:
        raise ConfigError(f"round: {server_round} cannot be gone back to: {damaged[0]}")
    if damaged:
        reasons = "; ".join(damaged).replace(f"{path}/", "")
        raise ConfigError(f"resume: no checkpoint in {path} can be used: {reasons}")
    if len(lines) > 1:
        raise ConfigError(f"resume: {path} has {len(lines)} full rounds in {METRICS_FILE}, but no checkpoint")
    return past


def _check_chosen(past: Past, config: RunConfig, history: Sequence[RoundResult]) -> None:
    """Check the checkpoint of the best of a run's rounds by validation, if the run keeps it.

    Raises:
        Damaged: If it is missing or not what was written.
    """
    best = model_selection.best(history) if config.keep == model_selection.BEST else None
    if best is not None and best.server_round != len(history):
        _check_memory(past, checkpoints.load(past.path / checkpoints.FOLDER, best.server_round, (checkpoints.FORMAT,)))


def _check_memory(past: Past, found: Checkpoint) -> None:
    """Check the private parts of simulated nodes, which belong to the checkpoint.

    Raises:
        Damaged: If those of a node are missing or not what was written.
    """
    if past.engine == DEPLOYMENT:
        return  # the nodes have them, and say so if they do not
    base = past.path / checkpoints.FOLDER / checkpoints.NODES_FOLDER
    resumed_after = (*past.resumed_after, found.server_round)
    for index, expected in found.memory.items():
        try:
            kept, _ = Shelf(state_store.simulated(base, index), resumed_after).recall()
        except FedShiftError as error:
            raise Damaged(str(error)) from None
        if kept < expected:
            raise Damaged(f"{state_store.simulated(base, index)} lacks the private parts of round {expected}")


def full_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of ``metrics.jsonl`` up to the first that is not the next round, as a kill leaves it."""
    found: list[dict[str, Any]] = []
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for line in text.splitlines(keepends=True):
        try:
            told = json.loads(line) if line.endswith("\n") else None
        except ValueError:
            break
        if not isinstance(told, dict) or told.get("round") != len(found) + 1:
            break
        found.append(told)
    return found


def round_result(line: Mapping[str, Any], nodes: Sequence[Node], config: RunConfig) -> RoundResult:
    """Return a round as it was before it was written, with no more names of losses and scores than may be shown."""
    share = line.get("evaluated_share")
    return RoundResult(
        server_round=line["round"],
        accuracy=line["accuracy"] or {},
        test_loss=line["test_loss"] or {},
        losses={name: math.nan if value is None else value for name, value in few(line["losses"]).items()},
        nodes=line["nodes"],
        left_out=line["left_out"],
        bytes_down=line["bytes_down"],
        bytes_up=line["bytes_up"],
        seconds=line["seconds"],
        validation=line.get("validation", {}),
        clients=_clients(line["client_models"], nodes, config) if "client_models" in line else None,
        others=few(line.get("others", {})),
        profile=line.get("profile", {}),
        evaluated_share=1.0 if share is None else min(share, _BELOW_ALL),
        started_anew=line.get("started_anew", []),
        lost=line.get("lost", []),
        untrained=line.get("untrained", []),
        spread=line.get("spread_over_nodes", {}),
    )


def _clients(told: Mapping[str, Any], nodes: Sequence[Node], config: RunConfig) -> ClientScores:
    drawn = config.shift.label_mix == "own"  # then no model was scored on what was drawn for another node
    return ClientScores(
        nodes=tuple(replace(node, shared_test=node.shared_test and not drawn) for node in nodes),
        accuracy={int(index): accuracy for index, accuracy in told["matrix"].items()},
        own={int(index): accuracy for index, accuracy in told.get("own", {}).items()},
    )
