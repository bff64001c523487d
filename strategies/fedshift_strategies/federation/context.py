"""What a strategy knows of the run, and what it reports of a round."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedshift_core.arrays import Arrays
from fedshift_core.run_settings import RunSettings
from fedshift_core.seeding import generator
from fedshift_core.wire.names import CE
from fedshift_strategies.federation.evaluation import Asked, Evaluation
from fedshift_strategies.federation.roster import Node

# The phases of a round on the server, one after another.
MESSAGES = "messages"  # choosing nodes and writing to them
TRAINING = "training"  # from the first message until all answers are there
AVERAGING = "averaging"  # checking, averaging, merging knowledge
EVALUATION = "evaluation"


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
class ModelFacts:
    """What a strategy must know of the network and of what the method's nodes score.

    Attributes:
        num_classes: C.
        feature_dim: D.
        personal: Nodes keep parts of the model to themselves, so each scores its own.
        own_parts: What a node scores has parts that only its own local training changes.
        scores_images_alone: A test set may be divided: the score of an image depends on no other image.
        terms: Names of all loss terms that nodes may report: those of the method, of modules, of any client.
        scores: Names of the other scores that nodes may report of test images.
        batchnorms: Names of the BatchNorm layers whose statistics travel with the weights.
        buffers: Names of the arrays that travel and are no parameters, such as BatchNorm's running statistics.
        start: What nodes begin from in addition to the shared weights, by state-dict name; sent to each once.
        frozen: Names of shared weights that never change and do not travel with the others.
        knowledge: What a run without rounds classifies by in addition to the weights, from their file.
        prototypes: Nodes contribute the class prototypes of their images.
    """

    num_classes: int
    feature_dim: int
    personal: bool = False
    own_parts: bool = False
    scores_images_alone: bool = True
    terms: tuple[str, ...] = (CE,)
    scores: tuple[str, ...] = ()
    batchnorms: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    start: Arrays = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    knowledge: Arrays = field(default_factory=dict)
    prototypes: bool = False

    def trained(self, arrays: Arrays) -> tuple[str, ...]:
        """Return which of the arrays that travel are parameters: neither buffers nor integers."""
        return tuple(name for name, array in arrays.items() if array.dtype.kind == "f" and name not in self.buffers)


@dataclass(frozen=True)
class Engine:
    """Where the run's nodes are.

    Attributes:
        name: ``simulation`` or ``deployment``.
        min_nodes: Nodes that must be there before each round.
        node_timeout: Seconds to wait for nodes and for their answer to the first question.
        queues: Messages wait in Flower's simulation for a free actor, so that their order matters.
    """

    name: str
    min_nodes: int = 1
    node_timeout: float = 120.0
    queues: bool = False

    @property
    def is_simulation(self) -> bool:
        """Whether nodes are played on this machine."""
        return self.name == "simulation"


@dataclass(frozen=True)
class RunContext:
    """What a strategy must know of the run.

    Attributes:
        config: The configuration.
        model: Facts of the network.
        engine: Where the nodes are.
        run_json: The resolved configuration, as it is sent to the nodes.
        repeated: How many rounds were, or may have been, begun once more as the run was resumed.
    """

    config: RunSettings
    model: ModelFacts
    engine: Engine
    run_json: str
    repeated: int = 0

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains to evaluate, in their order."""
        return tuple(self.config.dataset.domains)

    @property
    def num_classes(self) -> int:
        """C."""
        return self.model.num_classes

    @property
    def feature_dim(self) -> int:
        """D."""
        return self.model.feature_dim

    @property
    def sizes(self) -> dict[str, int]:
        """The dimensions of what nodes contribute that the run fixes, C and D."""
        return {"C": self.num_classes, "D": self.feature_dim}

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.config.seed

    @property
    def rounds(self) -> int:
        """Rounds of the run."""
        return self.config.rounds

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of the arrays that travel and are no parameters."""
        return self.model.buffers

    @property
    def own_tests(self) -> bool:
        """Whether each node has a test set of its own for every domain. Then all answer and their parts add up."""
        return bool(self.config.shift.label_mix == "own")

    @property
    def everywhere(self) -> bool:
        """Whether each node's own model is scored on all domains (``evaluate.personal_on``)."""
        on_all = self.config.evaluate.personal_on == "all_domains"
        return self.model.personal and self.engine.is_simulation and on_all

    def trained(self, arrays: Arrays) -> tuple[str, ...]:
        """Return which of the arrays that travel are parameters: neither buffers nor integers."""
        return self.model.trained(arrays)

    def number(self, present: int) -> int:
        """Return how many of the nodes that are present train in a round."""
        return max(1, round(float(self.config.federation.participation) * present))

    def sample(self, server_round: int, nodes: list[Node]) -> list[Node]:
        """Choose which nodes train, by index, from (seed, round)."""
        rng = generator(self.seed, "participation", server_round)
        chosen = rng.permutation(len(nodes))[: self.number(len(nodes))]
        return [nodes[i] for i in sorted(chosen)]

    def evaluation(
        self, server_round: int, nodes: list[Node], silent: Collection[int], extras: Mapping[str, Asked]
    ) -> Evaluation:
        """Return who of the connected nodes scores what after a round.

        Args:
            server_round: The round.
            nodes: The nodes that are connected.
            silent: Indices of nodes that score nothing.
            extras: What features add to the scores, by their name.
        """
        evaluate, model = self.config.evaluate, self.model
        return Evaluation(
            self.domains,
            nodes,
            personal=model.personal,
            own_tests=self.own_tests,
            scores_tests=evaluate.test,
            everywhere=self.everywhere,
            batch=self.config.images.eval_batch,
            divisible=model.scores_images_alone,
            share=evaluate.share(server_round, self.rounds),
            scores=model.scores,
            extras=extras,
            silent=silent,
            trained_only=model.own_parts and evaluate.untrained == "leave_out",
            max_images=self.config.federation.max_images,
        )


SINGLE = "single"  # in ``RoundResult.passing``


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
        left_out: Reason why a node of the run gave no part, one line each.
        bytes_down: Array bytes sent for training (weights, knowledge, once what is frozen); evaluation is not counted.
        bytes_up: Array bytes received for training.
        others: Accuracy as ``accuracy``, by the name of another way to score that the method offers.
        started_anew: Which nodes had lost what they kept to themselves, one line each.
        lost: Indices of the nodes that gave no part, in their order; ``left_out`` has the reasons. -1 stands for those
            that never had a place, since their owners declined.
        spread: By domain, sample standard deviation over nodes of the accuracy of their own models, in percent, where
            each is scored on all domains.
        shown: What features add to the round's line, by their key there (``ServerFeature.key``).
        passing: What features hand the run folder of this round, by their key, and under ``SINGLE`` by index of a node
            what a method has its files keep of each; it is not kept over the rounds.
        statistics: BatchNorm's statistics that were re-estimated, by state-dict name; empty where none were.
        kept: Arrays that the kept model has in place of the shared ones, with which training goes on; by name.
        untrained: Indices of the connected nodes whose own parts of the model had not been trained yet when the round
            was scored, in their order; whether they were scored says ``evaluate.untrained``.
        laps: Seconds of the server by phase.
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
    others: dict[str, dict[str, float | None]] = field(default_factory=dict)
    evaluated_share: float = 1.0
    started_anew: list[str] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    spread: dict[str, float | None] = field(default_factory=dict)
    shown: dict[str, Any] = field(default_factory=dict)
    passing: dict[str, Any] = field(default_factory=dict)
    statistics: Arrays = field(default_factory=dict)
    kept: Arrays = field(default_factory=dict)
    untrained: list[int] = field(default_factory=list)
    laps: dict[str, float] = field(default_factory=dict)

    def lose(self, *indices: int) -> None:
        """Note that nodes gave no part."""
        self.lost = sorted({*self.lost, *indices})


def fully_scored(history: Sequence[RoundResult]) -> list[RoundResult]:
    """Return the rounds that were scored on all test images."""
    return [result for result in history if result.accuracy and result.evaluated_share == 1]
