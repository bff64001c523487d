"""``fedshift run --dry-run``: estimates time, bytes and memory of a run from a few measured steps.

No round is played: one node trains a few steps on its own images and scores these, and the rest is calculated.
"""

import resource
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import yaml
from flwr.app import ConfigRecord, Message, RecordDict
from numpy.typing import NDArray
from torch.optim.optimizer import register_optimizer_step_post_hook

from clients.base import DomainClient
from clients.training import machine
from clients.training.phases import Phase
from datasets.base import ImageSet
from fedshift.costs.measuring import begin
from fedshift.tables import columns, facts
from fedshift_app import client_app
from fedshift_app.config import registry
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import setup
from fedshift_app.run import console, disk_space
from fedshift_core.secure.recovery import traffic
from fedshift_core.wire.names import ARRAYS, CONFIG, DOMAINS, KNOWLEDGE, OWN, RETAKEN, SERVER_ROUND
from fedshift_core.wire.records import decode, encode
from strategies.features.bn_statistics import expected_images, statistics_of
from strategies.features.catalog import Features
from strategies.federation.context import RunContext
from strategies.federation.roster import Node
from strategies.federation.updates import num_bytes

BATCHES = 2  # of the node in each epoch
EPOCHS = 2  # the first step includes preparations and does not count
_KB = 1 if sys.platform == "darwin" else 1024  # unit of ru_maxrss


@dataclass(frozen=True)
class Measured:
    """The measurements of one node.

    Attributes:
        step: Seconds of a step of training on a full batch.
        scored: Seconds for each test image.
        before: Seconds for each of a node's own images before a test set, where it trains on them then (FedICON).
        taken: Seconds per training image for re-estimated BatchNorm statistics; 0 if there are none.
        epochs: Of a local round over the node's own images, all its phases together.
        others: Steps of a local round on other images, such as the public set.
        first: Both for a node's first round, if that differs (FedMD); None if it does not.
        up: Bytes that a node sends after its first round.
        memory: The most bytes that this process held; of a GPU's memory where there is one.
    """

    step: float
    scored: float
    before: float
    taken: float
    epochs: int
    others: int
    up: int
    memory: int
    first: tuple[int, int] | None = None


@dataclass(frozen=True)
class Scoring:
    """Images that pass through the network, forward only, when the models are scored after a round.

    Attributes:
        test: Test images, counted per scoring node, with one kind of BatchNorm statistics (``evaluate.bn``).
        validation: Images of the nodes' validation parts, scored with the first kind only.
        statistics: Training images for re-estimated BatchNorm statistics, of all kinds.
        own: Training images of the scoring nodes, once for each test set, with one kind.
    """

    test: int
    validation: int
    statistics: float
    own: int

    def seconds(self, scorings: int, measured: Measured) -> float:
        """Return the total time, without parallelism, of ``scorings`` kinds of BatchNorm statistics."""
        images = (scorings * self.test + self.validation) * measured.scored + self.statistics * measured.taken
        return images + scorings * self.own * measured.before


@dataclass(frozen=True)
class Estimate:
    """The estimate of a run.

    Attributes:
        config: The run, its arithmetic settled.
        federation: The same, as the server has it.
        scored: The scored rounds, from 1.
        nodes: All of them.
        playing: The number of nodes that train in a round.
        side_by_side: The number of nodes that train at a time.
        down: Bytes sent to all nodes of the first round.
        folder: Bytes of the run folder when it is largest.
        measured: The measurements of one node.
    """

    config: RunConfig
    federation: RunContext
    scored: Sequence[int]
    nodes: Sequence[Node]
    playing: int
    side_by_side: int
    down: int
    folder: int
    measured: Measured

    @property
    def train_seconds(self) -> float:
        """Seconds of training in a round without first-time nodes."""
        return self._training(self.measured.epochs, self.measured.others)

    @property
    def first_seconds(self) -> float:
        """Additional seconds of the nodes' first rounds, in the run."""
        if self.measured.first is None:
            return 0.0
        joining = min(len(self.nodes), self.playing * self.config.rounds) / self.playing  # first rounds of nodes
        return joining * (self._training(*self.measured.first) - self.train_seconds)

    def _training(self, epochs: int, others: int) -> float:
        batch, share = self.config.train.batch_size, self.playing / len(self.nodes)
        own = sum(-(-node.num_examples // batch) for node in self.nodes) * epochs
        return (own + others * len(self.nodes)) * self.measured.step * share / self.side_by_side

    def scoring(self, server_round: int) -> Scoring:
        """Return the images scored after a round, from the server's evaluation messages."""
        fed = self.federation
        parts_of = fed.evaluation(server_round, list(self.nodes), extras=list(Features(fed))).first()
        of = {node: expected_images(node, fed.config.evaluate.bn_images) for node in self.nodes}
        own = sum(of[node] for node in parts_of) * (OWN in statistics_of(fed))
        reestimated = sum(of.values()) * self.playing / len(of) * (RETAKEN in statistics_of(fed))
        validation = sum(node.num_validation for node in parts_of) * (fed.config.allocation.validation_fraction > 0)
        test = sum(len(part) for parts in parts_of.values() for part in parts)
        trained_on = sum(node.num_examples * len(parts) for node, parts in parts_of.items())
        return Scoring(test, validation, own + reestimated, trained_on)

    @property
    def test_images(self) -> int:
        """Test images of a full scoring, counted once per scored model."""
        return self.scoring(self.config.rounds).test

    @property
    def score_seconds(self) -> float:
        """Seconds of all scoring in the run."""
        rounds = self.config.rounds
        round_of = {self.config.evaluate.share(n, rounds): n for n in self.scored}  # one round for each share
        scorings = len(statistics_of(self.federation))
        each = {share: self.scoring(n).seconds(scorings, self.measured) for share, n in round_of.items()}
        return sum(each[self.config.evaluate.share(n, rounds)] for n in self.scored) / self.side_by_side

    @property
    def bn_share(self) -> float:
        """Time of further BatchNorm statistics (``evaluate.bn``) as a share of a round's training."""
        full = replace(self.scoring(self.config.rounds), validation=0)  # scored only once
        more = full.seconds(len(statistics_of(self.federation)) - 1, self.measured)
        return more / self.side_by_side / self.train_seconds

    @property
    def seconds(self) -> float:
        """Seconds of the whole run."""
        return self.config.rounds * self.train_seconds + self.first_seconds + self.score_seconds


def estimate(config: RunConfig, nodes: int, side_by_side: int) -> Estimate:
    """Measure a few steps of the first node of the first round, and calculate the rest.

    Args:
        config: The run.
        nodes: How many nodes it has.
        side_by_side: The number of clients that train at a time.

    Raises:
        FedShiftError: If the run could not start, or the node cannot train.
    """
    settled, arrays, strategy, grid = begin(config, nodes)
    messages = list(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    threads = torch.get_num_threads()
    try:
        client = client_app.open_client(messages[0], grid.context_of(messages[0])).client
        measured = _measure(client, messages[0], statistics_of(strategy.federation))
    finally:
        torch.set_num_threads(threads)
    roster = list(strategy.roster.nodes)
    scored = [n for n in range(1, settled.rounds + 1) or (0,)
              if settled.evaluate.scores_global(n, settled.rounds) and strategy.scores_round(n)]  # fmt: skip
    return Estimate(
        settled, strategy.federation, scored, roster, len(messages), max(1, min(side_by_side, len(messages))),
        sum(num_bytes(message.content) for message in messages),
        disk_space.needed(settled, arrays, strategy, roster, simulated=True).folder, measured,
    )  # fmt: skip


def _measure(client: DomainClient, message: Message, bn_statistics: Sequence[str]) -> Measured:
    """Measure a client on a short round and its scoring; the client cannot be used afterwards.

    Args:
        client: The client.
        message: The server's message to train.
        bn_statistics: The kinds of ``evaluate.bn`` that the run scores with.
    """
    server_round = int(str(message.content.config_records[CONFIG][SERVER_ROUND]))
    parameters = setup.in_order(decode(message.content.array_records[ARRAYS]), client, "the server's")
    batch = client.setup.train.batch_size
    client.train_set = _few(client.train_set, batch, client.torch_rng("order", server_round))
    full = min(1.0, len(client.train_set) / batch)  # share of a batch, if the node has fewer images
    phases = _shortened(client, len(client.train_set))
    ended: list[float] = []
    with _steps(ended):
        weights, _, _ = client.fit(parameters, {SERVER_ROUND: server_round})
    shared = encode(dict(zip(client.shared_names, weights, strict=True)))
    sent = num_bytes(RecordDict({ARRAYS: shared, KNOWLEDGE: encode(client.contribution())}))
    test = client.train_set  # as large as any: a test set may belong to another node
    _score(client, parameters, test, server_round)  # a warm-up: first imports do not count
    seconds, steps = _score(client, parameters, test, server_round)
    half = max(1, len(test) // 2)  # at least one image
    client.train_set = test.select(np.arange(half))
    sooner, fewer = _score(client, parameters, test, server_round)
    client.train_set = test
    before = max(0.0, seconds - sooner) / (len(test) - half) if steps > fewer else 0.0  # it trains on its own first
    scored = max(0.0, seconds / len(test) - before)
    taken = 0.0
    if {OWN, RETAKEN} & set(bn_statistics):
        began = time.perf_counter()
        _, images = client.take_statistics(len(test))
        taken = (time.perf_counter() - began) / images
    step = statistics.median(later - sooner for sooner, later in pairwise(ended)) / full
    first = _counted(phases, batch)
    client.start_round(server_round + 1)
    client.phases(server_round + 1)  # which fills ``phases``
    usual = _counted(phases, batch)
    return Measured(step, scored, before, taken, *usual, sent, _memory(), None if first == usual else first)


@contextmanager
def _steps(ended: list[float]) -> Iterator[None]:
    """Record the end time of each optimizer step."""
    hook = register_optimizer_step_post_hook(lambda *_: ended.append(time.perf_counter()))
    try:
        yield
    finally:
        hook.remove()


def _score(
    client: DomainClient, parameters: list[NDArray[Any]], test: ImageSet, server_round: int
) -> tuple[float, int]:
    """Return the seconds in which a node scores a test set, and its number of training steps."""
    client.evaluate(parameters, {SERVER_ROUND: server_round, DOMAINS: []})  # takes it, and scores nothing
    ended: list[float] = []
    began = time.perf_counter()
    with _steps(ended):
        client.score_test(test)
    return time.perf_counter() - began, len(ended)


def _counted(phases: Sequence[Phase], batch: int) -> tuple[int, int]:
    """Return the epochs over a node's own images, and the steps on other images."""
    epochs = sum(phase.epochs for phase in phases if phase.images is None)
    others = (
        phase.epochs * -(-len(phase.images) // (phase.batch_size or batch))
        for phase in phases
        if phase.images is not None
    )
    return epochs, sum(others)


def _few(images: ImageSet, batch: int, draws: torch.Generator) -> ImageSet:
    """Return two batches of images, or more if all classes need more; a node sends prototypes of all classes."""
    order = torch.randperm(len(images), generator=draws).numpy()
    _, first = np.unique(images.y[order], return_index=True)
    ordered = np.concatenate([order[first], np.delete(order, first)])
    return images.select(ordered[: max(BATCHES * batch, len(first))])


def _shortened(client: DomainClient, most: int) -> list[Phase]:
    """Limit a client's phases to few epochs and ``most`` own images.

    Returns:
        A list that receives the full phases of each following local round.
    """
    phases = client.phases
    full: list[Phase] = []

    def cut(server_round: int) -> list[Phase]:
        full[:] = phases(server_round)
        return [phase.cut(EPOCHS if phase.epochs else 0, most) for phase in full]

    vars(client)["phases"] = cut  # hides the class's method, for this object only
    return full


def _memory() -> int:
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_reserved())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KB


def summary(result: Estimate) -> str:
    """Return the resolved configuration, the nodes with their images, and the estimate as text."""
    config, measured = result.config, result.measured
    configuration_text = yaml.safe_dump(
        config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, default_flow_style=None
    )
    head = ("node", "domain", "training images", "validation", "test images of its domain")
    rows = [
        (str(n.index), n.domain, str(n.num_examples), str(n.num_validation or "-"), str(n.num_test))
        for n in result.nodes
    ]  # fmt: skip
    fed, full = result.federation, result.scoring(config.rounds)
    gpu = " of the GPU" if torch.cuda.is_available() else ""
    side = f"{result.side_by_side} at a time" if result.side_by_side > 1 else "one after another"
    lines: list[tuple[str, str]] = [
        ("method", registry.approximation_line(config.method["name"])),
        ("nodes", f"{len(result.nodes)}, of which {result.playing} train in a round, {side}"),
        (
            "time",
            f"about {console.duration(result.seconds)}: {config.rounds} rounds of {_seconds(result.train_seconds)} "
            f"training, {_seconds(result.score_seconds)} for all scoring of {full.test} test images"
            + f" and {full.validation} of validation parts" * bool(full.validation)
            + f", {_seconds(result.first_seconds)} more for the nodes' first rounds" * bool(result.first_seconds),
        ),
        (
            "measured",
            f"{1e3 * measured.step:.3g} ms a step of {config.train.batch_size} images, {1e3 * measured.scored:.3g} ms "
            f"a test image"
            + f" and {1e3 * measured.before:.3g} ms an own image before each set of them" * bool(measured.before)
            + f", on one node's own images, with {config.train.arithmetic or config.train.precision}",
        ),
        (
            "bytes",
            f"{disk_space.size(result.down)} down and {disk_space.size(measured.up * result.playing)} up in round 1, "
            f"{disk_space.size((result.down + measured.up * result.playing) * config.rounds)} in the run if all rounds "
            "are equal",
        ),
        (
            "memory",
            f"{disk_space.size(measured.memory)}{gpu} in this process, and the same in each of "
            f"{result.side_by_side} clients at a time",
        ),
        ("disk", f"about {disk_space.size(result.folder)} for the run folder"),
        ("machine", machine.describe()),
    ]
    if config.federation.secure_sums:
        up, down = traffic(result.playing)
        lines.insert(4, (
            "secure sums", f"{disk_space.size(down)} down and {disk_space.size(up)} up more in each round for keys and "
            f"shares, in three more exchanges of messages; each node makes {result.playing} masks as long as what it "
            "sends"
        ))  # fmt: skip
    lines += [("privacy", text) for feature in Features(fed) for text in feature.description_of(result.nodes)]
    if result.bn_share:
        named = statistics_of(fed)
        further = len(named) - 1
        lines.insert(2, (
            "ways", f"of evaluate.bn, {', '.join(named)}: beyond one scoring {further} x {full.test} test images "
            f"and {full.statistics:.0f} training images, forward only, {100 * result.bn_share:.2g} % of a round's "
            "training in each round that is scored"
        ))  # fmt: skip
    notes = (
        "This is an estimate, without startup, messages and other work on the machine; methods with prototypes send "
        "them down from round 2 on. `fedshift costs` runs rounds and measures."
    )
    return "\n".join(
        [configuration_text, "nodes", *columns([head, *rows]), "", "estimate", *facts([*lines, ("note", notes)])]
    )


def _seconds(number: float) -> str:
    return f"{number:.2g} s" if number < 60 else console.duration(number)
