"""What a strategy is told of the run, and what it tells of a round."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from fedshift_core.arrays import Arrays
from fedshift_core.options.averaging import AggregationConfig, ServerConfig
from fedshift_core.options.scoring import EvaluateConfig
from fedshift_core.seeding import generator
from fedshift_core.wire.counts import Counts
from fedshift_core.wire.names import AVERAGED, BN_SCORE, CE, RETAKEN
from strategies.federation.evaluation import ClientScores, Evaluation
from strategies.federation.roster import Node


@dataclass(frozen=True)
class Ask:
    """What a node is about to be asked.

    Attributes:
        server_round: The round, from 1.
        trains: It trains; else it scores test images.
    """

    server_round: int
    trains: bool


@dataclass(frozen=True)
class Federation:
    """What a strategy must know of the run.

    Attributes:
        domains: The domains to evaluate, in their order.
        num_classes: C.
        feature_dim: D.
        seed: The run's seed.
        participation: Share of the nodes that train in a round, above 0, at most 1.
        personal: Nodes keep parts of the model to themselves, so each scores its own.
        own_parts: What a node scores has parts that only its own local training changes.
        min_nodes: Nodes that must be there before each round.
        node_timeout: Seconds to wait for nodes and for their answer to the first question.
        engine: ``simulation`` or ``deployment``.
        run_json: The resolved configuration, for the nodes.
        rounds: Rounds of the run.
        evaluate: Which of them are scored.
        validation: Nodes keep a validation part, on which the global model is scored as well.
        own_tests: Each node has a test set of its own for every domain, so all answer and their parts add up.
        profile: Whether to measure where the time of each round goes.
        eval_batch: Images per batch where nodes score test images.
        scores_images_alone: A test set may be divided: the score of an image depends on no other image.
        queues: Messages wait in Flower's simulation for a free actor, so that their order matters.
        max_value: The largest absolute value of a floating-point number that a node may send.
        max_update: How many times the norm of the weights that were sent a reply may change them; and how many times
            the median of a round that change, and the norm of what a node contributes besides, may be.
        max_images: How many times the median of the nodes' images one weighs by at most, in training and in scores.
        noise: Standard deviation of the noise that nodes add to each weight; 0 for none.
        method: The method's name, for messages.
        aggregation: How nodes weigh, where the method does not say, and how robust the average is.
        terms: Names of all loss terms that nodes may report: those of the method, of modules, of any client.
        scores: Names of the other ways in which nodes may score test images.
        bn_ways: With which statistics of BatchNorm they are scored, of ``evaluate.bn``; the first is the accuracy.
        batchnorms: Names of the BatchNorm layers whose statistics travel with the weights.
        start: What nodes begin from beside the shared weights, by state-dict name; sent to each once.
        frozen: Names of shared weights that never change and do not travel with the others.
        everywhere: Each node's own model is scored on all domains (``evaluate.personal_on``).
        server: What the server does with the average.
        buffers: Names of the arrays that travel and are no parameters, such as BatchNorm's running statistics.
    """

    domains: tuple[str, ...]
    num_classes: int
    feature_dim: int
    seed: int
    participation: float
    personal: bool
    min_nodes: int
    node_timeout: float
    engine: str
    run_json: str
    rounds: int = 1
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    validation: bool = False
    own_tests: bool = False
    profile: bool = False
    eval_batch: int = 64
    scores_images_alone: bool = True
    queues: bool = False
    max_value: float = 1e6
    max_update: float = 10.0
    max_images: float = 100.0
    noise: float = 0.0
    method: str = ""
    aggregation: AggregationConfig = field(default_factory=AggregationConfig)
    terms: tuple[str, ...] = (CE,)
    scores: tuple[str, ...] = ()
    bn_ways: tuple[str, ...] = (AVERAGED,)
    batchnorms: tuple[str, ...] = ()
    everywhere: bool = False
    own_parts: bool = False
    start: Arrays = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    server: ServerConfig = field(default_factory=ServerConfig)
    buffers: tuple[str, ...] = ()

    @property
    def retakes(self) -> bool:
        """Whether BatchNorm's statistics are taken anew in rounds that are scored."""
        return RETAKEN in self.bn_ways

    def trained(self, arrays: Arrays) -> tuple[str, ...]:
        """Return which of the arrays that travel are parameters: neither buffers nor integers."""
        return tuple(name for name, array in arrays.items() if array.dtype.kind == "f" and name not in self.buffers)

    def number(self, present: int) -> int:
        """Return how many of the nodes that are present train in a round."""
        return max(1, round(self.participation * present))

    def sample(self, server_round: int, nodes: list[Node]) -> list[Node]:
        """Choose which nodes train, by index, from (seed, round)."""
        rng = generator(self.seed, "participation", server_round)
        chosen = rng.permutation(len(nodes))[: self.number(len(nodes))]
        return [nodes[i] for i in sorted(chosen)]

    def evaluation(self, server_round: int, nodes: list[Node], silent: Collection[int] = ()) -> Evaluation:
        """Return who of the nodes that are connected scores what after a round; nodes of indices ``silent`` nothing."""
        return Evaluation(
            self.domains, nodes, personal=self.personal, own_tests=self.own_tests, validation=self.validation,
            test=self.evaluate.test, everywhere=self.everywhere, batch=self.eval_batch,
            divisible=self.scores_images_alone, share=self.evaluate.share(server_round, self.rounds),
            scores=(*self.scores, *(BN_SCORE + way for way in self.bn_ways[1:])),
            classes=self.num_classes if self.evaluate.figures else 0, silent=silent,
            trained_only=self.own_parts and self.evaluate.untrained == "leave_out", max_images=self.max_images,
        )  # fmt: skip


@dataclass
class RoundResult:
    """One full round, as written to ``metrics.jsonl``.

    Attributes:
        accuracy: Top-1 accuracy in percent by domain; None where no node could tell; empty in a round
            in which the global model was not scored.
        test_loss: Mean cross-entropy by domain.
        evaluated_share: Share of the test images behind both; 1 for all.
        losses: Training loss and its named terms, averaged over nodes by number of examples.
        nodes: Indices of the nodes whose weights were averaged.
        left_out: Why a node was left out, one line each.
        bytes_down: Array bytes sent for training (weights, knowledge, once what is frozen); evaluation is not counted.
        bytes_up: Array bytes received for training.
        validation: As ``accuracy``, on the nodes' validation parts; empty where they have none.
        clients: What the nodes' own models scored, in a round that asks for it.
        others: Accuracy as ``accuracy``, by the name of another way to score that the method offers.
        profile: Where the time went (``strategies.features.profile``), in a run that measures it.
        started_anew: Which nodes had lost what they kept to themselves, one line each.
        lost: Indices of simulated nodes that were left out for no fault of their own, in their order.
        spread: By domain, sample standard deviation over nodes of the accuracy of their own models, in percent, where
            each is scored on all domains.
        counts: By domain what the figures are made of, None where a node told none; empty where nobody was asked.
        statistics: BatchNorm's statistics that were taken anew, by state-dict name; empty where none were.
        untrained: Indices of the connected nodes whose own parts of the model had not been trained yet when the round
            was scored, in their order; whether they were scored says ``evaluate.untrained``.
    """

    server_round: int
    accuracy: dict[str, float | None] = field(default_factory=dict)
    test_loss: dict[str, float | None] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    nodes: list[int] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    validation: dict[str, float | None] = field(default_factory=dict)
    clients: ClientScores | None = None
    others: dict[str, dict[str, float | None]] = field(default_factory=dict)
    profile: dict[str, Any] = field(default_factory=dict)
    evaluated_share: float = 1.0
    started_anew: list[str] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    spread: dict[str, float | None] = field(default_factory=dict)
    counts: dict[str, Counts | None] = field(default_factory=dict)
    statistics: Arrays = field(default_factory=dict)
    untrained: list[int] = field(default_factory=list)
