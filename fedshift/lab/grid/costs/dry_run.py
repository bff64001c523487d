"""``--dry-run``: times the first real messages of a run, and multiplies.

One node trains its first two rounds and is asked for its scores; no answer is used and nothing is written, except
images into their cache.
"""

import logging
import resource
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import torch
import yaml
from flwr.app import ConfigRecord, Message
from rich.filesize import decimal as size

from fedshift.lab.grid.costs.measuring import answered, begin
from fedshift.run.checking import check_data
from fedshift.run.columns import columns, facts
from fedshift.run.launch import runner, worker_count
from fedshift_app.config import registry
from fedshift_app.config.sections import RunConfig
from fedshift_app.run import build as run_build
from fedshift_app.run import console, disk_space, resuming
from fedshift_app.run.disk_space import Needed
from fedshift_clients.training import machine
from fedshift_core.plural import plural
from fedshift_core.secure.recovery import traffic
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.features.catalog import Features
from fedshift_strategies.federation.roster import Node
from fedshift_strategies.federation.updates import num_bytes

log = logging.getLogger("fedshift")
_KB = 1 if sys.platform == "darwin" else 1024  # unit of ru_maxrss


@dataclass(frozen=True)
class Measured:
    """The first messages of a run.

    Attributes:
        config: The run, its arithmetic settled.
        strategy: The server's side, as it stands before the first round.
        playing: The number of nodes that train in a round.
        prepared: Seconds from the configuration to the first message: images, model, measured arithmetic.
        local: Seconds of a node's local round: its first, and its second where there is one.
        score: Seconds of a node for all questions of a full scoring.
        asked: The number of nodes that score.
        scorings: The number of scorings in the run; a sample of the test images counts as its share.
        down: Bytes sent to all nodes of the first round.
        up: Bytes that all of them send.
        memory: The most bytes that this process held, without what processes share; of a GPU where there is one.
        disk: Bytes of the run folder.
    """

    config: RunConfig
    strategy: DomainStrategy
    playing: int
    prepared: float
    local: Sequence[float]
    score: float
    asked: int
    scorings: float
    down: int
    up: int
    memory: int
    disk: Needed

    @property
    def nodes(self) -> list[Node]:
        """All nodes."""
        return list(self.strategy.roster.nodes)

    @property
    def traffic(self) -> int:
        """Bytes of all messages of training, both ways, if all rounds are as the first."""
        return (self.down + self.up) * self.config.rounds

    def at_a_time(self, places: int) -> int:
        """Return how many nodes train at a time, where there is room for so many."""
        return max(1, min(places, self.playing))

    def seconds(self, places: int) -> float:
        """Return the seconds of the run, where there is room for so many nodes at a time."""
        trained = self.playing * (self.local[0] + (self.config.rounds - 1) * self.local[-1]) if self.local else 0.0
        return self.prepared + (trained + self.scorings * self.asked * self.score) / self.at_a_time(places)


def measure(config: RunConfig, nodes: int) -> Measured:
    """Let the node of the usual number of images answer the first messages of a run.

    Raises:
        FedShiftError: If the run could not start, or the node cannot train.
    """
    began, threads = time.perf_counter(), torch.get_num_threads()
    # Here nobody has trained, the second round is scored, and all of it.
    scored_now = config.evaluate.model_copy(update={"untrained": "count", "every": 1, "fraction": 1.0})
    played = config.model_copy(update={"evaluate": scored_now, "rounds": max(1, config.rounds)})
    ready, grid = begin(played, nodes)
    arrays, strategy = ready.initial, ready.strategy
    messages = list(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    prepared, images = time.perf_counter() - began, {node.node_id: node.num_examples for node in strategy.roster.nodes}
    mean = statistics.fmean(images[message.metadata.dst_node_id] for message in messages)
    node = min(messages, key=lambda one: abs(images[one.metadata.dst_node_id] - mean)).metadata.dst_node_id

    def its(of: Sequence[Message]) -> list[Message]:
        return [message for message in of if message.metadata.dst_node_id == node] or list(of[:1])

    rounds, local, up, evaluate = config.rounds, [], 0, config.evaluate
    scorings = sum(
        evaluate.share(n, rounds)
        for n in range(1, rounds + 1) or (0,)
        if evaluate.scores_global(n, rounds) and strategy.scores_round(n)
    )
    try:
        for number in range(1, min(rounds, 2) + 1):
            later = strategy.configure_train(number, arrays, ConfigRecord(), grid) if number > 1 else messages
            (reply,), (seconds,) = answered(grid, its(list(later))[:1], number)
            local.append(seconds)
            up = up or num_bytes(reply.content)
        questions = list(strategy.configure_evaluate(played.rounds, arrays, ConfigRecord(), grid))
        _, scored = answered(grid, its(questions), rounds)
    finally:
        torch.set_num_threads(threads)
    return Measured(
        config.model_copy(update={"train": ready.settled.train}),
        strategy,
        len(messages),
        prepared,
        local,
        sum(scored),
        len({question.metadata.dst_node_id for question in questions}),
        scorings,
        sum(num_bytes(message.content) for message in messages),
        up * len(messages),
        held_memory(),
        disk_space.needed(config, arrays, strategy.federation, len(strategy.roster.nodes), simulated=True),
    )


def held_memory() -> int:
    """Return ``Measured.memory`` of now."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_reserved())
    shared = getattr(psutil.Process().memory_info(), "shared", 0)  # pages of files: libraries, kept images
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KB - shared


def places(config: RunConfig, nodes: int, launch: Mapping[str, Any], requested: int | None) -> int:
    """Return how many clients of a run train at a time, with so many workers of the inline engine (None: all cores)."""
    if launch.get("engine", "simulation") == "inline":
        return worker_count.workers(config, nodes, requested)
    each = runner.resources(config, nodes, launch)
    return each.actors or worker_count.places(each.cpus)


def summary(flat: Mapping[str, Any], launch: Mapping[str, Any]) -> str:
    """Return the configuration of a run, its nodes, and an estimate of its time, bytes and memory (``run --dry-run``).

    Args:
        flat: Its run-config keys.
        launch: Its launch keys.

    Raises:
        FedShiftError: If it could not start.
    """
    worker_count.check(launch)
    requested = worker_count.requested(launch)
    config, past = resuming.resolve(flat, hold=False)
    nodes = runner.num_nodes(config, launch.get("nodes", past and past.num_nodes))
    check_data(config, nodes)
    console.set_up()
    return text(measure(config, nodes), places(config, nodes, launch, requested))


def text(of: Measured, room: int) -> str:
    """Return the summary of a run with room for so many nodes at a time."""
    config = of.config
    settings = yaml.safe_dump(
        config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, default_flow_style=None
    )
    rows = [("node", "domain", "training images", "validation", "test images of its domain")]
    rows += [
        (str(n.index), n.domain, str(n.num_examples), str(n.num_validation or "-"), str(n.num_test)) for n in of.nodes
    ]
    at_a_time = of.at_a_time(room)
    lines = [
        ("method", registry.approximation_line(config.method["name"])),
        ("nodes", f"{len(of.nodes)}, of which {of.playing} train in a round, {at_a_time} at a time"),
        ("time", f"about {console.duration(of.seconds(room))} for {plural(config.rounds, 'round')}"),
        (
            "measured",
            f"{' s, then '.join(f'{seconds:.2g}' for seconds in of.local) or 0} s a local round of one node, "
            f"{of.score:.2g} s its scores, with {config.train.arithmetic or config.train.precision}",
        ),
        ("secure sums", _secure_sums(of)),
        ("bytes", f"{size(of.down)} down and {size(of.up)} up in round 1, {size(of.traffic)} in the run"),
        (
            "memory",
            f"{size(of.memory)}{' of the GPU' * torch.cuda.is_available()} in this process, and the same in each of "
            f"{plural(at_a_time, 'client')} at a time",
        ),
        ("disk", f"about {size(of.disk.folder)} for the run folder"),
        ("machine", machine.describe()),
        *((feature.name, line) for feature in Features(of.strategy.federation) for line in feature.describe(of.nodes)),
        ("warning", run_build.unheld_line(config, len(of.nodes))),
        ("note", "An estimate, if all rounds are as the first two of this node, without other work on the machine."),
    ]
    return "\n".join([settings, "nodes", *columns(rows), "", "estimate", *facts(lines)])


def _secure_sums(of: Measured) -> str:
    """Return what secure sums cost; empty where there are none."""
    if not of.config.federation.secure_sums:
        return ""
    up, down = traffic(of.playing, of.strategy.federation.num_classes)
    return (
        f"{size(down)} down and {size(up)} up more in each round for keys and shares, in three "
        f"more exchanges; each node makes {of.playing} masks as long as what it sends; all twice in a round that "
        "re-estimates BatchNorm's statistics"
    )
