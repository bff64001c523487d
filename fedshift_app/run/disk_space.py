"""Checks before a run starts whether the disk has room for its folder: an estimate against the free space."""

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ArrayRecord
from rich.filesize import decimal

from fedshift_app.config.sections import RunConfig
from fedshift_app.node import setup
from fedshift_app.run import model_selection
from fedshift_clients.base import DomainClient
from fedshift_core.disk_use import bytes_in, existing
from fedshift_core.errors import ConfigError
from fedshift_core.kept_rounds import KEEP_STEPS
from fedshift_strategies.federation.context import RunContext

log = logging.getLogger("fedshift")

CHECKPOINTS = 1 + len(KEEP_STEPS)  # of a run in progress
OF_A_NODE = CHECKPOINTS + 1  # files of private parts: one more during a round
SHARED = 2  # times the weights: what a checkpoint has of the server
FEWEST = 2  # checkpoints that must have room: one is written before another is removed
REPORT = 1_000_000  # bytes of report.html, configuration and status
OF_A_ROUND = 3_000  # bytes of text: a line of metrics.jsonl, of log.jsonl, of TensorBoard


@dataclass(frozen=True)
class Needed:
    """The bytes that a run needs on the disk.

    Attributes:
        checkpoint: One checkpoint, with what simulated nodes keep of its round.
        folder: The run folder at its largest.
        texts: What is left of it without weights.
    """

    checkpoint: int
    folder: int
    texts: int


def needed(config: RunConfig, initial: ArrayRecord, federation: RunContext, nodes: int, *, simulated: bool) -> Needed:
    """Estimate the disk space of a run; ``simulated`` nodes keep their private parts in the run folder.

    What a strategy keeps besides weights counts as much as these. Where that is more, the first round shows it: it has
    a checkpoint in any case.
    """
    domains, classes = len(config.dataset.domains), federation.num_classes
    weights = sum(len(array.data) for array in initial.values())
    shared = SHARED * weights + nodes * (300 + 8 * classes)  # in the JSON file of a checkpoint
    kept = nodes * _kept(config, weights) if simulated else 0
    texts = config.rounds * (OF_A_ROUND + 60 * domains * config.evaluate.scorers(nodes) + 8 * nodes) + REPORT
    sent_once = sum(array.nbytes for array in federation.model.start.values())
    # Rounds that the run is asked to keep, and the best round up to each of them.
    chosen = len(config.keep_rounds)
    chosen += CHECKPOINTS + chosen if config.keep == model_selection.BEST else 0
    folder_size = (CHECKPOINTS + chosen) * shared + (OF_A_NODE + chosen) * kept + sent_once + texts
    return Needed(shared + kept, folder_size, texts)


def check(folder: Path, run: Needed, *, goes_on: bool = False) -> None:
    """Refuse a run that has no room for ``FEWEST`` checkpoints, and warn if the whole folder may not fit.

    Args:
        folder: The run folder, or where it is to be made.
        run: The bytes that the run needs.
        goes_on: It has a part of these in its folder already.

    Raises:
        ConfigError: With the needed and the free space.
    """
    bytes_free, least = shutil.disk_usage(existing(folder)).free, FEWEST * run.checkpoint
    whole = max(run.folder - bytes_in(folder), 0) if goes_on else run.folder
    space = f"{decimal(bytes_free)} are free in {folder}, the run needs about {decimal(whole)}"
    if bytes_free < least:
        raise ConfigError(f"output-dir: {space}, and {decimal(least)} to start; make room, or name another output-dir")
    if bytes_free < whole:
        log.warning(
            "little room: %s; the run ends when a file cannot be written", space, extra={"event": "little_room"}
        )


def _kept(config: RunConfig, weights: int) -> int:
    """Return the bytes that a node with the largest network keeps after a round; ``weights`` bytes are shared."""
    client_class: type[DomainClient] = config.declared.client_class()
    sizes: list[int] = []
    for name in config.model.per_node or (config.model.name,):
        own = config.model.model_copy(update={"name": name})
        model = setup.initial_model(config, own)
        private = client_class.kept_names(model, own, config.params(), setup.modules(config))
        sizes.append(sum(t.numel() * t.element_size() for n, t in model.state_dict().items() if n in private))
    return max(sizes) + (weights if client_class.remembers_shared else 0)
