"""``fedshift run --dry-run``: what a run is, who holds what, and what it will take, from a few measured steps.

No round is played: one node takes a few steps on its own images and scores these, and the rest is counted.
"""

import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import yaml
from flwr.app import ConfigRecord, Message, RecordDict
from torch.optim.optimizer import register_optimizer_step_post_hook

from clients.base import DomainClient
from clients.training import machine
from clients.training.phases import Phase
from datasets.base import ImageSet
from fedshift_app import client_app
from fedshift_app.config import registry
from fedshift_app.config.sections import RunConfig
from fedshift_app.costs.measuring import TimedGrid
from fedshift_app.help.tables import columns, facts
from fedshift_app.node import setup
from fedshift_app.run import arithmetic, console, space, starting
from fedshift_wire.names import ARRAYS, CONFIG, KNOWLEDGE, OWN, RETAKEN, SERVER_ROUND
from fedshift_wire.records import decode, encode
from strategies.federation.roster import Node
from strategies.federation.updates import num_bytes

BATCHES = 2  # that the node takes in each epoch
EPOCHS = 2  # the first step of all prepares, and does not count
_KB = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


@dataclass(frozen=True)
class Measured:
    """What one node showed.

    Attributes:
        step: Seconds of a step of training on a full batch.
        scored: Seconds for each test image.
        epochs: Of a local round over the node's own images, all its phases together.
        others: Steps of a local round on other images, such as those of the public set.
        up: Bytes that a node sends after its first round.
        memory: The most bytes that this process held; of a GPU's memory where there is one.
    """

    step: float
    scored: float
    epochs: int
    others: int
    up: int
    memory: int


@dataclass(frozen=True)
class Estimate:
    """What a run is going to take.

    Attributes:
        config: The run, its arithmetic settled.
        nodes: All of them.
        playing: How many train in a round.
        side_by_side: How many of them at a time.
        down: Bytes that all nodes of the first round are sent.
        folder: Bytes of the run folder when it is largest.
        measured: What one node showed.
        personal: Each node is scored with a model of its own.
    """

    config: RunConfig
    nodes: Sequence[Node]
    playing: int
    side_by_side: int
    down: int
    folder: int
    measured: Measured
    personal: bool

    @property
    def train_seconds(self) -> float:
        """Seconds of a round's training."""
        batch, share = self.config.train.batch_size, self.playing / len(self.nodes)
        own = sum(-(-node.num_examples // batch) for node in self.nodes) * self.measured.epochs
        steps = own + self.measured.others * len(self.nodes)
        return steps * self.measured.step * share / self.side_by_side

    @property
    def test_images(self) -> int:
        """Images of a full scoring: each domain's once, or each node's where models are personal."""
        if self.personal:
            return sum(node.num_test for node in self.nodes)
        tests = {node.domain: node.num_test for node in self.nodes}
        return sum((tests | {name: number for node in self.nodes for name, number in node.unheld_tests}).values())

    @property
    def score_seconds(self) -> float:
        """Seconds of all scoring in the run."""
        config = self.config
        shares = [config.evaluate.share(n, config.rounds) for n in range(1, config.rounds + 1)
                  if config.evaluate.scores_global(n, config.rounds)]  # fmt: skip
        images = sum(shares) * self.test_images * len(config.evaluate.bn) + len(shares) * self.statistics_images
        return images * self.measured.scored / self.side_by_side

    @property
    def statistics_images(self) -> float:
        """Training images that BatchNorm's statistics are taken of for a scoring: a forward pass, as a score is."""
        asked = self.config.evaluate
        all_nodes = sum(min(node.num_examples, asked.bn_images) for node in self.nodes)
        return all_nodes * ((OWN in asked.bn) + (RETAKEN in asked.bn) * self.playing / len(self.nodes))

    @property
    def seconds(self) -> float:
        """Seconds of the whole run."""
        return self.config.rounds * self.train_seconds + self.score_seconds


def estimate(config: RunConfig, nodes: int, side_by_side: int) -> Estimate:
    """Measure a few steps of the first node that the first round asks, and count the rest.

    Args:
        config: The run.
        nodes: How many nodes it has.
        side_by_side: How many clients train at a time.

    Raises:
        FedShiftError: If the run could not start, or the node cannot train.
    """
    arrays, federation = starting.prepare(config, setup.SIMULATION)
    strategy = starting.strategy_of(config, federation, lambda *_: None)
    grid = TimedGrid(client_app.app, nodes)
    strategy.gather(grid)
    settled, _ = arithmetic.settle(config, strategy.roster.fastest, None, here=True)
    strategy.settle(settled.model_dump_json())
    messages = list(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    threads = torch.get_num_threads()
    try:
        client = client_app.open_client(messages[0], grid.context_of(messages[0])).client
        measured = _measure(client, messages[0])
    finally:
        torch.set_num_threads(threads)
    roster = list(strategy.roster.nodes)
    return Estimate(
        settled, roster, len(messages), max(1, min(side_by_side, len(messages))),
        sum(num_bytes(message.content) for message in messages),
        space.needed(settled, arrays, strategy, roster, simulated=True).whole, measured, federation.personal,
    )  # fmt: skip


def _measure(client: DomainClient, message: Message) -> Measured:
    """Let a client play its round with few images and epochs, and score these; it must not be used any more."""
    server_round = int(str(message.content.config_records[CONFIG][SERVER_ROUND]))
    parameters = setup.in_order(decode(message.content.array_records[ARRAYS]), client, "the server's")
    batch = client.setup.train.batch_size
    client.train_set = _few(client.train_set, batch, client.torch_rng("order", server_round))
    full = min(1.0, len(client.train_set) / batch)  # of a batch, where the node has fewer images than that
    phases = _shortened(client, len(client.train_set))
    ended: list[float] = []
    hook = register_optimizer_step_post_hook(lambda *_: ended.append(time.perf_counter()))
    try:
        weights, _, _ = client.fit(parameters, {SERVER_ROUND: server_round})
    finally:
        hook.remove()
    epochs = sum(phase.epochs for phase in phases if phase.images is None)
    others = sum(
        phase.epochs * -(-len(phase.images) // (phase.batch_size or batch))
        for phase in phases
        if phase.images is not None
    )
    shared = encode(dict(zip(client.shared_names, weights, strict=True)))
    sent = num_bytes(RecordDict({ARRAYS: shared, KNOWLEDGE: encode(client.contribution())}))
    test = client.train_set  # as large as any: a test set may be of another node
    began = time.perf_counter()
    client.score_test(test)
    scored = (time.perf_counter() - began) / len(test)
    step = statistics.median(later - sooner for sooner, later in pairwise(ended)) / full
    return Measured(step, scored, epochs, others, sent, _memory())


def _few(images: ImageSet, batch: int, draws: torch.Generator) -> ImageSet:
    """Return two batches of images, or more where it takes more to have all classes, whose prototypes a node sends."""
    order = torch.randperm(len(images), generator=draws).numpy()
    _, first = np.unique(images.y[order], return_index=True)
    ordered = np.concatenate([order[first], np.delete(order, first)])
    return images.select(ordered[: max(BATCHES * batch, len(first))])


def _shortened(client: DomainClient, most: int) -> list[Phase]:
    """Let a client's phases have few epochs, and so many images of their own at most.

    Returns:
        A list, in which the phases of its next local round will be as they would have been.
    """
    phases = client.phases
    whole: list[Phase] = []

    def cut(server_round: int) -> list[Phase]:
        whole[:] = phases(server_round)
        return [phase.cut(EPOCHS if phase.epochs else 0, most) for phase in whole]

    vars(client)["phases"] = cut  # hides the method of the class, for this object only
    return whole


def _memory() -> int:
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_reserved())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KB


def told(found: Estimate) -> str:
    """Return the resolved configuration, the nodes with their images, and what the run is going to take."""
    config, measured = found.config, found.measured
    said = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, default_flow_style=None)
    head = ("node", "domain", "training images", "validation", "test images of its domain")
    rows = [
        (str(n.index), n.domain, str(n.num_examples), str(n.num_validation or "-"), str(n.num_test))
        for n in found.nodes
    ]  # fmt: skip
    gpu = " of the GPU" if torch.cuda.is_available() else ""
    side = f"{found.side_by_side} at a time" if found.side_by_side > 1 else "one after another"
    lines: list[tuple[str, str]] = [
        ("method", registry.approximation_told(config.method["name"])),
        ("nodes", f"{len(found.nodes)}, of which {found.playing} train in a round, {side}"),
        (
            "time",
            f"about {console.duration(found.seconds)}: {config.rounds} rounds of {_seconds(found.train_seconds)} "
            f"training, {_seconds(found.score_seconds)} for all scoring of {found.test_images} test images",
        ),
        (
            "measured",
            f"{1e3 * measured.step:.3g} ms a step of {config.train.batch_size} images, {1e3 * measured.scored:.3g} ms "
            f"a test image, on one node's own images, with {config.train.arithmetic or config.train.precision}",
        ),
        (
            "bytes",
            f"{space.size(found.down)} down and {space.size(measured.up * found.playing)} up in round 1, "
            f"{space.size((found.down + measured.up * found.playing) * config.rounds)} in the run if all were like it",
        ),
        (
            "memory",
            f"{space.size(measured.memory)}{gpu} in this process, and as much in each of {found.side_by_side} clients "
            "at a time",
        ),
        ("disk", f"about {space.size(found.folder)} for the run folder"),
        ("machine", machine.describe()),
    ]
    notes = (
        "An estimate: starting, messages and other work on the machine come on top; methods that send prototypes send "
        "them down from round 2 on. `fedshift costs` plays rounds and counts."
    )
    return "\n".join([said, "nodes", *columns([head, *rows]), "", "estimate", *facts([*lines, ("note", notes)])])


def _seconds(number: float) -> str:
    return f"{number:.2g} s" if number < 60 else console.duration(number)
