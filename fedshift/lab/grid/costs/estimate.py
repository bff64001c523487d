"""``fedshift run --dry-run``: estimates time, bytes and memory of a run from a few measured steps.

No round is played: one node trains a few steps on its own images and scores these, and the rest is calculated.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import yaml
from flwr.app import ConfigRecord

from fedshift.lab.grid.costs.measuring import begin
from fedshift.lab.grid.costs.node_steps import Counted, Measured, count_flops, file_pages, measure
from fedshift.run.columns import columns, facts
from fedshift_app import client_app
from fedshift_app.config import registry
from fedshift_app.config.sections import RunConfig
from fedshift_app.features.bn_statistics.server import expected_images, statistics_of
from fedshift_app.run import build as run_build
from fedshift_app.run import console, disk_space
from fedshift_app.run.disk_space import Needed
from fedshift_clients.base import DomainClient
from fedshift_clients.training import machine
from fedshift_core.plural import plural
from fedshift_core.secure.recovery import traffic
from fedshift_core.wire.names import OWN, RETAKEN
from fedshift_strategies.features.catalog import Features
from fedshift_strategies.federation.context import RunContext
from fedshift_strategies.federation.evaluation import Asked
from fedshift_strategies.federation.roster import Node
from fedshift_strategies.federation.updates import num_bytes


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
        disk: Bytes of the run folder.
        measured: The measurements of one node.
        counted: Its FLOPs; None where they were not counted.
        prepared: Seconds from the configuration to the first message: images, model, measured arithmetic.
    """

    config: RunConfig
    federation: RunContext
    scored: Sequence[int]
    nodes: Sequence[Node]
    playing: int
    side_by_side: int
    down: int
    disk: Needed
    measured: Measured
    counted: Counted | None = None
    prepared: float = 0.0

    @property
    def train_seconds(self) -> float:
        """Seconds of training in a round without first-time nodes."""
        return self._training(self.measured.epochs, self.measured.others)

    @property
    def first_seconds(self) -> float:
        """Additional seconds of the nodes' first rounds, in the run."""
        if self.measured.first is None:
            return 0.0
        return self._first_rounds * (self._training(*self.measured.first) - self.train_seconds)

    @property
    def _first_rounds(self) -> float:
        """The number of rounds in which nodes train for the first time."""
        return min(len(self.nodes), self.playing * self.config.rounds) / self.playing

    def _training(self, epochs: int, others: int) -> float:
        return self._steps(epochs, others) * self.measured.step / self.side_by_side

    def _steps(self, epochs: int, others: int) -> float:
        """Return the steps of all nodes in a round; the last batch of an epoch counts as a full one."""
        batch, share = self.config.train.batch_size, self.playing / len(self.nodes)
        own = sum(-(-node.num_examples // batch) for node in self.nodes) * epochs
        return (own + others * len(self.nodes)) * share

    @property
    def flops(self) -> float:
        """FLOPs of the whole run: of all steps, and of all scored images; 0 where they were not counted."""
        if self.counted is None:
            return 0.0
        usual = self._steps(self.measured.epochs, self.measured.others)
        steps = self.config.rounds * usual
        if self.measured.first is not None:
            steps += self._first_rounds * (self._steps(*self.measured.first) - usual)
        return steps * self.counted.step + self.scored_images * self.counted.image

    @property
    def scored_images(self) -> float:
        """Images that pass through the network for scores, in the whole run."""
        scorings, trains_first = len(statistics_of(self.federation)), bool(self.measured.before)
        return sum(scorings * max(r.test, r.own * trains_first) + r.validation + r.statistics for r in self._scorings)

    @property
    def _scorings(self) -> list[Scoring]:
        """The images of each scored round; rounds that score the same share of the test images score as many."""
        shares = [self.config.evaluate.share(n, self.config.rounds) for n in self.scored]
        of = {share: self.scoring(n) for share, n in dict(zip(shares, self.scored, strict=True)).items()}
        return [of[share] for share in shares]

    def scoring(self, server_round: int) -> Scoring:
        """Return the images scored after a round, from the server's evaluation messages."""
        fed = self.federation
        validates = fed.config.allocation.validation_fraction > 0
        extras = {"validation": Asked(everyone=validates)}
        parts_of = fed.evaluation(server_round, list(self.nodes), extras=extras).first()
        of = {node: expected_images(node, fed.config.evaluate.bn_images) for node in self.nodes}
        own = sum(of[node] for node in parts_of) * (OWN in statistics_of(fed))
        reestimated = sum(of.values()) * self.playing / len(of) * (RETAKEN in statistics_of(fed))
        validation = sum(node.num_validation for node in parts_of) * validates
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
        scorings = len(statistics_of(self.federation))
        return sum(r.seconds(scorings, self.measured) for r in self._scorings) / self.side_by_side

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


def estimate(config: RunConfig, nodes: int, side_by_side: int, *, count: bool = False) -> Estimate:
    """Measure a few steps of the first node of the first round, and calculate the rest.

    Args:
        config: The run.
        nodes: How many nodes it has.
        side_by_side: The number of clients that train at a time.
        count: Whether FLOPs are counted, in a few steps more.

    Raises:
        FedShiftError: If the run could not start, or the node cannot train.
    """
    began = time.perf_counter()
    settled, arrays, strategy, grid = begin(config, nodes)
    messages = list(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    prepared = time.perf_counter() - began
    threads = torch.get_num_threads()

    def opened() -> DomainClient:
        return client_app.open_client(messages[0], grid.context_of(messages[0].metadata.dst_node_id)).client

    try:
        measured = measure(opened(), messages[0], statistics_of(strategy.federation))
        counted = count_flops(opened, messages[0]) if count else None
    finally:
        torch.set_num_threads(threads)
    roster = list(strategy.roster.nodes)
    scored = [n for n in range(1, settled.rounds + 1) or (0,)
              if settled.evaluate.scores_global(n, settled.rounds) and strategy.scores_round(n)]  # fmt: skip
    return Estimate(
        settled, strategy.federation, scored, roster, len(messages), max(1, min(side_by_side, len(messages))),
        sum(num_bytes(message.content) for message in messages),
        disk_space.needed(settled, arrays, strategy.federation, len(roster), simulated=True),
        measured, counted, prepared,
    )  # fmt: skip


def summary(result: Estimate) -> str:
    """Return the resolved configuration, the nodes with their images, and the estimate as text."""
    config = result.config
    configuration_text = yaml.safe_dump(
        config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, default_flow_style=None
    )
    head = ("node", "domain", "training images", "validation", "test images of its domain")
    rows = [
        (str(n.index), n.domain, str(n.num_examples), str(n.num_validation or "-"), str(n.num_test))
        for n in result.nodes
    ]  # fmt: skip
    side = f"{result.side_by_side} at a time" if result.side_by_side > 1 else "one after another"
    lines = [
        ("method", registry.approximation_line(config.method["name"])),
        ("nodes", f"{len(result.nodes)}, of which {result.playing} train in a round, {side}"),
        ("ways", _ways(result)),
        *_times(result),
        ("secure sums", _secure_sums(result)),
        *_sizes(result),
        ("machine", machine.describe()),
        *((feature.name, text) for feature in Features(result.federation) for text in feature.describe(result.nodes)),
        ("warning", run_build.unheld_line(config, len(result.nodes))),
        (
            "note",
            "This is an estimate, without startup, messages and other work on the machine; methods with prototypes "
            "send them down from round 2 on. `fedshift costs` runs rounds and measures.",
        ),
    ]
    return "\n".join([configuration_text, "nodes", *columns([head, *rows]), "", "estimate", *facts(lines)])


def _ways(result: Estimate) -> str:
    """Return what further BatchNorm statistics cost; empty where there are none."""
    if not result.bn_share:
        return ""
    named, full = statistics_of(result.federation), result.scoring(result.config.rounds)
    return (
        f"of evaluate.bn, {', '.join(named)}: beyond one scoring {len(named) - 1} x {plural(full.test, 'test image')} "
        f"and {full.statistics:.0f} training images, forward only, {100 * result.bn_share:.2g} % of a round's training "
        "in each round that is scored"
    )


def _times(result: Estimate) -> list[tuple[str, str]]:
    """Return the time of the run, and the measured steps that it follows from."""
    config, measured, full = result.config, result.measured, result.scoring(result.config.rounds)
    return [
        (
            "time",
            f"about {console.duration(result.seconds)}: {plural(config.rounds, 'round')} of "
            f"{_seconds(result.train_seconds)} "
            f"training, {_seconds(result.score_seconds)} for all scoring of {plural(full.test, 'test image')}"
            + f" and {full.validation} of validation parts" * bool(full.validation)
            + f", {_seconds(result.first_seconds)} more for the nodes' first rounds" * (result.first_seconds > 0),
        ),
        (
            "measured",
            f"{1e3 * measured.step:.3g} ms a step of {plural(config.train.batch_size, 'image')}, "
            f"{1e3 * measured.scored:.3g} ms a test image"
            + f" and {1e3 * measured.before:.3g} ms an own image before each set of them" * bool(measured.before)
            + f", on one node's own images, with {config.train.arithmetic or config.train.precision}",
        ),
    ]


def _secure_sums(result: Estimate) -> str:
    """Return what secure sums cost; empty where there are none."""
    if not result.config.federation.secure_sums:
        return ""
    up, down = traffic(result.playing, result.federation.num_classes)
    twice = RETAKEN in statistics_of(result.federation)
    return (
        f"{disk_space.size(down)} down and {disk_space.size(up)} up more in each round for keys and shares, in three "
        f"more exchanges of messages; each node makes {result.playing} masks as long as what it sends"
        + "; a round that re-estimates BatchNorm's statistics does so twice"
        * twice
    )


def _sizes(result: Estimate) -> list[tuple[str, str]]:
    """Return the bytes sent, in memory and on the disk."""
    gpu = " of the GPU" if torch.cuda.is_available() else ""
    shared = ", without pages of files, which they share" if file_pages() and not gpu else ""
    up = result.measured.up * result.playing
    return [
        (
            "bytes",
            f"{disk_space.size(result.down)} down and {disk_space.size(up)} up in round 1, "
            f"{disk_space.size((result.down + up) * result.config.rounds)} in the run if all rounds are equal",
        ),
        (
            "memory",
            f"{disk_space.size(result.measured.memory)}{gpu} in this process, and the same in each of "
            f"{plural(result.side_by_side, 'client')} at a time{shared}",
        ),
        ("disk", f"about {disk_space.size(result.disk.folder)} for the run folder"),
    ]


def _seconds(number: float) -> str:
    return f"{number:.2g} s" if number < 60 else console.duration(number)
