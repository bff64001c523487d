"""Whether a run's folder has room, looked at before the run starts: an estimate against what is free."""

import logging
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ArrayRecord

from clients.base import DomainClient
from fedshift_app.config import registry
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import setup
from fedshift_app.run import model_selection
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.kept_rounds import KEEP_STEPS
from strategies.base import DomainStrategy
from strategies.federation.roster import Node

log = logging.getLogger("fedshift")

CHECKPOINTS = 1 + len(KEEP_STEPS)  # of a run that goes on
OF_A_NODE = CHECKPOINTS + 1  # files of private parts: one more while a round is on its way
FEWEST = 2  # checkpoints that must have room, else nothing starts: one is written before another is removed
REPORT = 1_000_000  # bytes of report.html, configuration and status
OF_A_ROUND = 3_000  # bytes of text: a line of metrics.jsonl, of log.jsonl, of TensorBoard


@dataclass(frozen=True)
class Needed:
    """What a run needs on the disk, in bytes.

    Attributes:
        checkpoint: One checkpoint, with what simulated nodes keep of its round.
        whole: The run folder when it is largest.
    """

    checkpoint: int
    whole: int


def needed(
    config: RunConfig, initial: ArrayRecord, strategy: DomainStrategy, nodes: Sequence[Node], *, simulated: bool
) -> Needed:
    """Estimate what a run needs; ``simulated`` nodes keep their private parts in the run folder."""
    domains, classes = len(config.dataset.domains), strategy.federation.num_classes
    about_nodes = len(nodes) * (300 + 8 * classes)  # in the JSON file of a checkpoint
    weights = sum(len(array.data) for array in initial.values())
    shared = weights * (1 + config.server.moments) + _knowledge(strategy, initial, len(nodes)) + about_nodes
    kept = len(nodes) * _kept(config, weights) if simulated else 0
    scores = domains * (len(nodes) if config.evaluate.client_models != "off" else 1)
    text = config.rounds * (OF_A_ROUND + 60 * scores + 8 * len(nodes))
    once = sum(array.nbytes for array in strategy.federation.model.start.values())
    # What the run is asked to keep; and the best round until each that it can go back to.
    asked = len(config.keep_rounds)
    chosen = asked + (CHECKPOINTS + asked if config.keep == model_selection.BEST else 0)
    whole = (CHECKPOINTS + chosen) * shared + (OF_A_NODE + chosen) * kept + once + text + REPORT
    return Needed(shared + kept, whole)


def check(folder: Path, free: int, run: Needed) -> None:
    """Refuse a run that cannot even write ``FEWEST`` checkpoints, warn where the whole may find no room.

    Args:
        folder: The run folder, or where it is to be made.
        free: Bytes that are free there.
        run: What the run needs.

    Raises:
        ConfigError: With what is needed and what is free.
    """
    least = FEWEST * run.checkpoint
    told = f"{size(free)} are free in {folder}, the run needs about {size(run.whole)}"
    if free < least:
        raise ConfigError(
            f"output-dir: {told}, and {size(least)} at the very least; make room, or name another output-dir"
        )
    if free < run.whole:
        log.warning("little room: %s; it ends where a file cannot be written", told, extra={"event": "little_room"})


def free(folder: Path) -> int:
    """Return the bytes that are free in a folder, or where it is going to be made.

    Raises:
        ConfigError: If the system does not say.
    """
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        return shutil.disk_usage(there).free
    except OSError as error:
        raise ConfigError(f"output-dir: cannot tell what is free in {there}: {error.strerror}") from None


def taken(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _knowledge(strategy: DomainStrategy, initial: ArrayRecord, nodes: int) -> int:
    """Return the bytes of what the strategy keeps besides weights: as it is, or before round 1 of every node's share.

    A dimension that is a node's own is taken for the number of classes.
    """
    kept: Arrays = {**strategy.knowledge, **strategy.state}
    if kept:
        return sum(int(array.nbytes) for array in kept.values())
    sizes = {"D": strategy.federation.feature_dim}
    classes = strategy.federation.num_classes
    shapes = (
        [sizes.get(part, classes) if isinstance(part, str) else part for part in shape]
        for shape in strategy.expected().values()
    )
    return (nodes + 1) * sum(4 * math.prod(shape) for shape in shapes) + strategy.state_bytes(initial, nodes)


def _kept(config: RunConfig, weights: int) -> int:
    """Return the bytes that a node keeps to itself after a round, of the largest network; ``weights`` are shared."""
    client_class: type[DomainClient] = registry.get(config.method["name"]).client_class()
    sizes: list[int] = []
    for name in config.model.per_node or (config.model.name,):
        own = config.model.model_copy(update={"name": name})
        model = setup.initial_model(config, own)
        private = client_class.kept_names(model, own, config.node_params(), setup.modules(config))
        sizes.append(sum(t.numel() * t.element_size() for n, t in model.state_dict().items() if n in private))
    return max(sizes) + (weights if client_class.remembers_shared else 0)


def size(number: int) -> str:
    """Return bytes for people."""
    value, units = float(number), ["bytes", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.3g} {units[0]}"
