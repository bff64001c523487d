"""The model of a node's report: a saved one, or the last that the node was sent."""

from dataclasses import dataclass
from pathlib import Path

from fedshift.export import opening, saved, saving, scorer
from fedshift.export.programs import Program
from fedshift.site.nodes import SiteNode
from fedshift_app.config import validating
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import one_time_payload, received_model, setup
from fedshift_app.node.received_model import Received
from fedshift_app.node.state_store import StateStore
from fedshift_clients.training import precision
from fedshift_core.arrays import Arrays, digest
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.limits import shown


@dataclass(frozen=True)
class Opened:
    """A model that scores images.

    Attributes:
        config: The configuration of its run, with its own network.
        run: Returns the scores (B, C) of images (B, 3, size, size), 0 to 1.
        label: Which model it is, in words.
        sha256: Of its weights.
    """

    config: RunConfig
    run: Program
    label: str
    sha256: str


def of_folder(folder: Path) -> Opened:
    """Open a saved model.

    Raises:
        FedShiftError: If it is none, is not complete, or is a program, which does not say how images were divided.
    """
    model, file = saved.read(folder)
    if not model.configuration:
        raise ConfigError(
            f"--model: {shown(folder)} is saved as {model.form}, which lacks the run's configuration; save it as "
            "safetensors"
        )
    origin = model.origin
    label = f"{origin.experiment}, {model.method['name']}, after round {origin.server_round} of {origin.rounds}"
    label += f", before this: {model.before}" if model.before else ""
    config = opening.configuration_of(model, folder)
    return Opened(config, opening.program_of(model, file), f"{label} ({shown(folder)})", model.sha256)


def of_node(node: SiteNode) -> Opened:
    """Open the last model that a node was sent, with the private parts that it keeps.

    Raises:
        FedShiftError: If none was kept, or it cannot classify without what only a round has.
    """
    kept = received_model.read(node.folder)
    if kept is None:
        raise ConfigError(
            f"{shown(node.name)} keeps no received model: give --model DIR (fedshift save, save-node), or start it by "
            "`fedshift supernode --keep-model`"
        )
    config = validating.from_json(kept.run)
    number = node.config.get("partition-id", -1)
    number = number if isinstance(number, int) else -1
    config = saving.with_network(config, number, str(node.config.get("model", "")))
    arrays = _arrays(node, kept, config)
    built = scorer.rebuilt(config, arrays, f"{shown(node.name)}: the received", kept.node_index)
    run = opening.program_from(built.to(precision.default_device()))
    when = f"before round {kept.server_round}" if kept.trained else f"in round {kept.server_round}"
    when = f"as received {when} of {config.rounds}" if config.rounds else "as received to be scored, without training"
    label = f"{config.experiment}, {config.method['name']}, {when}"
    as_sent = config.declared.client_class().scores_as_sent(config.params())
    if setup.adaptation(config) is not None or not as_sent:
        label += ", before the run adapts it for a score"
    return Opened(config, run, label, digest(arrays))


def _arrays(node: SiteNode, kept: Received, config: RunConfig) -> Arrays:
    """Return the arrays that classify: received, sent once, and the node's own.

    Raises:
        FedShiftError: If some are nowhere.
    """
    needed = scorer.needs_of(config, kept.knowledge, kept.node_index)
    folder = node.folder / f"run-{kept.run_id}"
    weights = (one_time_payload.of_run(folder) if folder.is_dir() else {}) | kept.weights
    arrays = {name: weights[name] for name in needed.weights if name in weights}
    arrays |= {scorer.KNOWLEDGE + name: kept.knowledge[name] for name in needed.knowledge}
    if missing := [name for name in needed.weights if name not in weights]:
        last = kept.server_round - kept.trained
        _, memory = StateStore(folder, (*kept.resumed_after, last)).recall()
        if not memory:
            raise FedShiftError(
                f"{shown(node.name)} has no private parts of run {kept.run_id} after round {last}, and the received "
                "model is not complete without them"
            )
        arrays |= saving.personal_parts(memory, missing, shown(node.name))
    return arrays
