"""``fedshift save``: exports the model of a run into a folder."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedshift.export import programs, saved, scorer
from fedshift.export.card import card, sections_of
from fedshift.export.forms import Form
from fedshift.export.saved import Measured, Origin, SavedModel, Site
from fedshift.run import reading
from fedshift.run.reading import Record
from fedshift_app.config import plugins, registry
from fedshift_app.config.sections import RunConfig
from fedshift_app.features.figures.show import KEY, test_images
from fedshift_app.features.normalization.node import normalising, of_rows
from fedshift_app.features.statistics.server import federation_images
from fedshift_app.node import setup, state_store
from fedshift_app.node.data import Place
from fedshift_app.node.state_store import StateStore
from fedshift_app.run import agreement, checkpoints, initial_model, sections
from fedshift_app.run import build as run_build
from fedshift_app.run.checkpoints import Checkpoint, Damaged
from fedshift_clients.training.node import MODEL_PART
from fedshift_core import atomic_io
from fedshift_core.accuracies import average
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.frozen import FrozenDict
from fedshift_core.limits import shown, some
from fedshift_core.plural import plural
from fedshift_core.wire.names import BN_SCORE
from fedshift_datasets.base import Source
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.federation.context import Ask
from fedshift_strategies.federation.roster import Node

MOST_NODES_LISTED = 8  # listed in a message
_SAME = "personal parts, it is the same on all nodes"


@dataclass(frozen=True)
class Wanted:
    """The model to save.

    Attributes:
        folder: The run folder.
        form: The form of the file.
        node: The index of the node whose model is saved; None for the global one.
        shared: Save only the shared weights, for ``fedshift save-node``.
        before: Save the model before the changes that precede each score.
        server_round: The kept round after which to save it; None for the last of a finished run.
        output: The folder to make; None for one in the run folder.
    """

    folder: Path
    form: Form
    node: int | None = None
    shared: bool = False
    before: bool = False
    server_round: int | None = None
    output: Path | None = None


def save(wanted: Wanted) -> tuple[Path, SavedModel]:
    """Write the model of a run.

    Returns:
        The new folder, and its content.

    Raises:
        FedShiftError: If there is no such run or model, the form does not support it, or the folder exists.
    """
    record = reading.read(wanted.folder, "save")
    output = wanted.output or _output(record, wanted)
    saved.check_free(output)
    programs.check_form(wanted.form)
    config, arrays, fields = taken(record, wanted)
    return output, write(output, config, arrays, wanted.form, fields)


def taken(record: Record, wanted: Wanted) -> tuple[RunConfig, Arrays, dict[str, Any]]:
    """Return the model of a run as it is to be saved: its configuration, its arrays, and further fields of its card.

    Raises:
        FedShiftError: If there is no such model.
    """
    if changed := agreement.edited(record.folder, record.config_file):
        raise ConfigError(f"{record.folder.name}: {changed}; restore it")
    checkpoint = checkpoint_of(record, wanted.server_round)
    _check_wanted(record, wanted)
    before = _before_a_score(record.config, wanted.before)
    node, config = None if wanted.node is None else _node(checkpoint, wanted.node), record.config
    if node is not None and config.model.per_node:
        config = with_network(config, node.partition_id, domain=node.domain)
    config = _normalised(config, checkpoint, node)
    arrays = _arrays(record, config, checkpoint, node, shared=wanted.shared)
    with saved.in_a_line(f"save: {shown(record.folder)}"):
        measured, origin = _measured(record, checkpoint, before), _origin(record, checkpoint)
    return (
        config,
        arrays,
        {
            "parts": "shared" if wanted.shared else "global" if node is None else "node",
            "node": "" if node is None else str(node.index),
            "site": "" if node is None else node.domain,
            "before": before,
            "measured": measured,
            "origin": origin,
            "run": sections_of(record),
        },
    )


def _normalised(config: RunConfig, checkpoint: Checkpoint, node: Node | None) -> RunConfig:
    """Return the configuration with mean and deviation by which the model's images are normalised.

    Raises:
        ConfigError: If they are a node's own, and none is chosen or it reports none.
    """
    way = config.images.normalization
    if way == "fixed":
        return config
    if node is None:
        raise ConfigError(
            f"save: images.normalization={way}: each node's images go by its own mean",
            remedy="fedshift save RUN --node N saves the model with that of one node",
        )
    of_all = federation_images(checkpoint.moments, config.dataset.domains)
    row = None if of_all is None else of_all.row_of(node.index)
    if of_all is None or row is None:
        raise ConfigError(f"save: images.normalization={way}: {node} reports no statistics of its images")
    mean, std = normalising(of_rows(of_all, np.array([row]), way), of_all, config.images)
    fixed = {"mean": tuple(mean.tolist()), "std": tuple(std.tolist()), "normalization": "fixed"}
    images = config.images.model_copy(update=fixed | {"normalization_draw": "image"})
    return config.model_copy(update={"images": images})


def write(output: Path, config: RunConfig, arrays: Arrays, form: Form, fields: dict[str, Any]) -> SavedModel:
    """Write a model in a form.

    Args:
        output: The folder to make.
        config: The run's configuration, with the model's own network.
        arrays: Weights by state-dict name, and other arrays that classify under ``knowledge/NAME``.
        form: The form of the file.
        fields: Further fields of ``model.json``: ``parts``, ``node``, ``site``, ``before``, ``measured``, ``origin``.

    Raises:
        FedShiftError: If the arrays are not the network's, or the form does not support it.
    """
    if fields["parts"] == "shared":
        data = atomic_io.pack(arrays)
    else:
        model = scorer.rebuilt(config, arrays, "the saved")  # the arrays are tried before they are written
        data = atomic_io.pack(arrays) if form == "safetensors" else programs.made(model, form)
    return saved.write(output, fields | described(config, arrays, form), data, card)


def described(config: RunConfig, arrays: Arrays, form: Form) -> dict[str, Any]:
    """Return the fields of ``model.json`` that the configuration and the arrays say."""
    return scorer.facts_of(config) | {
        "form": form,
        "batchnorm": config.model.bn,
        "method": dict(config.method),
        "modules": [dict(entry) for entry in config.modules],
        "parameters": sum(math.prod(array.shape) for array in arrays.values()),
        "knowledge": list(scorer.knowledge_in(arrays)),
        "configuration": saved.portable(config) if form == "safetensors" else {},
    }


def checkpoint_of(record: Record, server_round: int | None) -> Checkpoint:
    """Return the checkpoint that holds the run's model.

    Args:
        record: The run.
        server_round: The requested round; None for the one whose model a finished run keeps: the best by
            validation (``keep``), or the last.

    Raises:
        ConfigError: If there is none.
    """
    folder, where = record.folder / checkpoints.FOLDER, shown(record.folder)
    if not record.config.rounds:
        raise ConfigError(
            f"save: the run in {where} has rounds=0: it trained no model, it scored the one that it began with"
        )
    kept = checkpoints.rounds(folder)
    others = ", ".join(map(str, kept)) or "none"
    if server_round is not None:
        if server_round not in kept:
            raise ConfigError(f"--round: {server_round} is not kept; kept are {others}")
        try:
            return checkpoints.load(folder, server_round)
        except Damaged as reason:
            raise ConfigError(f"--round: {reason}") from None
    number, full = record.kept_round or len(record.lines), plural(record.config.rounds, "round is", "rounds are")
    if not record.finished:
        why = f"the run in {where} is not finished, {len(record.lines)} of {full} complete"
    elif record.checkpoint is None or record.checkpoint.server_round != number:
        why = f"{where}: the checkpoint of round {number} cannot be read"
    else:
        return record.checkpoint
    raise ConfigError(f"save: {why}", remedy=f"fedshift save RUN --round N saves one of {others}" if kept else "")


def _output(record: Record, wanted: Wanted) -> Path:
    name = "model" if wanted.form == "safetensors" else f"model-{wanted.form}"
    name += "-shared" if wanted.shared else "" if wanted.node is None else f"-node-{wanted.node}"
    return record.folder / (name if wanted.server_round is None else f"{name}-round-{wanted.server_round}")


def _check_wanted(record: Record, wanted: Wanted) -> None:
    if wanted.shared and (wanted.node is not None or wanted.form != "safetensors"):
        raise ConfigError("--shared: the shared parts, as safetensors; it excludes --node and any other --format")
    if wanted.node is not None and record.deployed and record.config.images.normalization == "fixed":
        raise ConfigError(
            "--node: the personal parts of real nodes are on the nodes: give their owners the folder of `fedshift save "
            "RUN --shared`, for `fedshift save-node`"
        )
    if wanted.form == "safetensors" and plugins.used(record.config):
        raise ConfigError(
            "--format: this run uses its own Python files (plugins), without which weights are no model; it can be "
            "saved as a program: torchscript, onnx, exported"
        )


def _before_a_score(config: RunConfig, allowed: bool) -> str:
    """Return a description of the run's changes to a model before each score; empty for none.

    Raises:
        ConfigError: If there are changes, and the model before them is not requested.
    """
    made_anew = not config.declared.client_class().scores_as_sent(config.params())
    done = [f"method {config.method['name']} makes a new one"] if made_anew else []
    done += [] if setup.adaptation(config) is None else [f"adapt.name={config.adapt['name']}"]
    changes = " and ".join(done)
    if changes and not allowed:
        raise ConfigError(
            f"save: this run scores no model unchanged ({changes}, on a node's images, before each score); "
            "--before-adaptation saves the model before that"
        )
    if allowed and not changes:
        raise ConfigError("--before-adaptation: this run scores its model unchanged; leave the option out")
    return changes


def _node(checkpoint: Checkpoint, index: int) -> Node:
    for node in checkpoint.nodes:
        if node.index == index:
            return node
    raise ConfigError(f"--node: there is no node {index}; the run has {listed(checkpoint.nodes)}")


def listed(nodes: Sequence[Node]) -> str:
    """Return some of the nodes, for a message."""
    return some([f"{node.index} ({node.domain})" for node in nodes], MOST_NODES_LISTED) or "none"


def with_network(config: RunConfig, number: int, network: str = "", domain: str = "") -> RunConfig:
    """Return a configuration with a node's network alone, by its number or the network that it was started with."""
    own = setup.own_network(config, Place(domain, number, -1, Source(), False, 0, network))
    return config.model_copy(update={"model": own.model_copy(update={"per_node": ()})})


def _arrays(record: Record, config: RunConfig, checkpoint: Checkpoint, node: Node | None, *, shared: bool) -> Arrays:
    """Return the arrays that classify: weights and, under ``knowledge/NAME``, arrays of the server.

    Raises:
        ConfigError: If a part differs between nodes and no node is named, or the reverse.
    """
    (knowledge,) = _knowledge(record, checkpoint, [node or checkpoint.nodes[0]])
    needed = scorer.needs_of(config, knowledge, node.index if node else 0)
    personal = [name for name in needed.weights if name not in checkpoint.weights]
    if record.config.model.per_node:
        personal = list(needed.weights)
    arrays = {name: checkpoint.weights[name] for name in needed.weights if name not in set(personal)}
    arrays |= {scorer.KNOWLEDGE + name: knowledge[name] for name in needed.knowledge}
    if node is not None and (personal or record.config.images.normalization == "fixed"):
        return arrays | _personal(record, checkpoint, node, personal)
    if bool(personal) != shared:
        raise ConfigError(_not_so(record, checkpoint, personal))
    if needed.knowledge:
        _check_same_for_all(record, checkpoint, needed.knowledge)
    return arrays


def _not_so(record: Record, checkpoint: Checkpoint, personal: list[str]) -> str:
    if not personal:
        return f"--shared: this run's model has no {_SAME}; leave --shared out"
    reason = f"save: with {record.config.method['name']!r} each node has its own model"
    if record.deployed:
        return f"{reason}, parts of which are on the nodes: --shared saves the rest, for `fedshift save-node` there"
    return f"{reason}: give --node, one of {listed(checkpoint.nodes)}"


def _personal(record: Record, checkpoint: Checkpoint, node: Node, names: list[str]) -> Arrays:
    """Return a simulated node's own weights as they were after the checkpoint's round."""
    if not names:
        raise ConfigError(f"--node: node {node.index} has no {_SAME}; leave --node out")
    base = record.folder / checkpoints.FOLDER / checkpoints.NODES_FOLDER
    # As a resumed run would read it: the state of an unfinished round does not count.
    resumed_after = (*record.resumed_after, checkpoint.server_round)
    kept, memory = StateStore(state_store.simulated(base, node.partition_id), resumed_after).recall()
    if kept < checkpoint.memory.get(node.index, 0) or (not kept and node.index in checkpoint.memory):
        raise ConfigError(
            f"--node: the personal parts of node {node.index} after round {checkpoint.server_round} are not kept; "
            "a finished run keeps those of its last round"
        )
    return personal_parts(memory, names, f"node {node.index}")


def personal_parts(memory: Arrays, names: list[str], whose: str) -> Arrays:
    """Return weights from a node's state.

    Raises:
        ConfigError: If the state lacks them.
    """
    missing = [name for name in names if MODEL_PART + name not in memory]
    if missing:
        why = "" if memory else ": it never trained in this run"
        raise ConfigError(f"{whose} lacks personal parts ({shown(missing[0])}, ...){why}")
    return {name: memory[MODEL_PART + name] for name in names}


def restored(record: Record, checkpoint: Checkpoint) -> DomainStrategy[Any]:
    """Return a run's strategy as it was at a checkpoint."""
    _, federation = run_build.prepare(record.config, record.engine, initial_model.plain(record.config))
    strategy = run_build.strategy_of(record.config, federation, lambda *_: None)
    run_build.restore(strategy, checkpoint)
    return strategy


def _knowledge(record: Record, checkpoint: Checkpoint, nodes: Sequence[Node]) -> list[Arrays]:
    """Return the arrays that the server sends each node in addition to weights before a score."""
    strategy, ask = restored(record, checkpoint), Ask(checkpoint.server_round, False)
    return [dict(strategy.knowledge_for(node, ask)) for node in nodes]


def _check_same_for_all(record: Record, checkpoint: Checkpoint, names: tuple[str, ...]) -> None:
    """Refuse arrays of the server that differ between nodes."""
    first, *others = _knowledge(record, checkpoint, checkpoint.nodes)
    for name in names:
        if any(name not in other or first[name].tobytes() != other[name].tobytes() for other in others):
            one = f"fedshift save RUN --node N saves that of one of {listed(checkpoint.nodes)}"
            reason = f"save: the server gives each node its own {name}, which no file for all nodes can contain"
            raise ConfigError(reason, remedy="" if record.deployed else one)


def _measured(record: Record, checkpoint: Checkpoint, before: str) -> Measured | None:
    """Return the scores of the checkpoint's round, if that round scored these weights."""
    config = record.config
    if checkpoint.server_round > len(record.lines):
        return None
    line = record.lines[checkpoint.server_round - 1]
    adapts, keep = setup.adaptation(config), config.model.bn_keep
    accuracy, others = line["accuracy"], line.get("others", {})
    figures = sections.kept(record.folder, checkpoint.server_round, config).get(KEY, {}).get("domains", {})
    if before:
        makes_anew = not config.declared.client_class().scores_as_sent(config.params())
        accuracy = None if makes_anew or adapts is None else others.get(adapts.before)
        config = config.model_copy(update={"adapt": FrozenDict({"name": registry.NONE})})  # else it counts as personal
    elif config.evaluate.bn[0] != keep:  # the reported score uses other BatchNorm statistics than the weights
        accuracy = others.get(f"{BN_SCORE}{keep}")
    if not accuracy or line.get("evaluated_share") is not None:
        return None
    drawn, sites = config.shift.label_mix == "own", {}
    for domain, value in accuracy.items():
        of = figures.get(domain) if accuracy is line["accuracy"] else None  # else they are of the other score
        by_class = {key: of[key] for key in ("balanced_accuracy", "macro_f1")} if of else {}
        sites[domain] = Site(accuracy=value, images=test_images(checkpoint.nodes, domain, drawn=drawn), **by_class)
    whose = "personal models" if setup.is_personal(config, setup.initial_model(config)) else "global model"
    return Measured(of=whose, server_round=checkpoint.server_round, sites=sites, average=average(accuracy))


def _origin(record: Record, checkpoint: Checkpoint) -> Origin:
    config_yaml = record.config_file
    return Origin(
        experiment=record.config.experiment,
        dataset=record.config.dataset.name,
        server_round=checkpoint.server_round,
        rounds=record.config.rounds,
        nodes=len(checkpoint.nodes),
        images=sum(node.num_examples for node in checkpoint.nodes),
        seed=record.config.seed,
        engine=record.engine,
        run_id=str(config_yaml.get("run_id", "")),
        resumed_after=record.resumed_after,
        versions={str(name): str(number) for name, number in dict(config_yaml.get("versions", {})).items()},
        commit=str(config_yaml.get("git", "")),
    )
