"""Hooks of a feature on the server. They do nothing unless a feature overrides them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from flwr.app import ArrayRecord, Message, RecordDict

from fedshift_core.arrays import Arrays
from fedshift_core.params import Params
from fedshift_core.secure.layout import Sum
from fedshift_core.wire.scores import Part
from fedshift_strategies.contributions import Declaration
from fedshift_strategies.federation.checks import Known
from fedshift_strategies.federation.context import RoundResult, RunContext
from fedshift_strategies.federation.evaluation import Answer, Evaluation
from fedshift_strategies.federation.nodes import Node
from fedshift_strategies.federation.update_norms import SentWeights
from fedshift_strategies.federation.updates import Sifted, Update

LeaveOut = Callable[..., None]  # node, reason, lost=False


@dataclass(frozen=True)
class Training:
    """The training of one round.

    Attributes:
        server_round: The round, from 1.
        nodes: All nodes of the federation.
        sent_to: How many nodes were sent the round.
        sent: The shared weights that they were sent.
        scored: Models can be scored after this round.
        tests_seen: Test images by domain, as its nodes say.
    """

    server_round: int
    nodes: Sequence[Node]
    sent_to: int
    sent: ArrayRecord
    scored: bool = True
    tests_seen: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Question:
    """A question about the averaged weights, of whose answers only means over all images need be known.

    Attributes:
        work: The nodes that are asked, each with the number of its images behind the answer.
        options: What they are asked.
        powers: By name of the numbers that they answer with, (C,) each: which power of a number of about 1 they are
            means of.
        sizes: C by name.
    """

    work: Mapping[Node, int]
    options: Mapping[str, Any]
    powers: Mapping[str, int]
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Means:
    """What came of a question.

    Attributes:
        arrays: Means over all images of the nodes together, by name, (C,), float64.
        nodes: The nodes whose images they are of.
    """

    arrays: Arrays
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Session:
    """How a feature asks nodes something before models are scored.

    Attributes:
        server_round: The round that is scored.
        nodes: The connected nodes that trained in it; all connected ones where none did.
        weights: The weights that are scored, of whose arrays only the shapes are looked at.
        ask: Sends nodes, each with its work in images, a question, and returns their answers. A third argument, if
            given, has by node what it alone is asked besides.
        observe: Is handed the numbers of each reply that is used.
        leave_out: Is handed each node whose reply is not used, why, and whether it is ``lost``.
        query: Sends each node its own question, without weights, and returns the answers.
        hidden: Has a question answered so that nobody sees a single answer; None where the run hides none.
    """

    server_round: int
    nodes: Sequence[Node]
    weights: ArrayRecord
    ask: Callable[..., Iterable[Message]]
    observe: Callable[[Node, Mapping[str, Any]], None]
    leave_out: LeaveOut
    query: Callable[[dict[Node, dict[str, Any]]], list[Message]] = lambda questions: []
    hidden: "Callable[[Question, Session], Means | None]" = lambda question, session: None


@dataclass(frozen=True)
class Exchange:
    """How a feature asks nodes something while a round trains.

    Attributes:
        result: What the round comes to.
        ask: Sends each node its own question, and returns the answers; other messages are not among them.
        leave_out: Is handed each node whose answer is not used, why, and whether it is ``lost``.
        observe: Is handed the numbers of each reply that is used.
        numbers: Returns the numbers of a reply to a message to train; raises ``Refused`` where others are in it.
        alike: Whether nodes weigh the same by the method's own rule.
        declared: What nodes contribute in this run.
        sizes: The dimensions that the run fixes, C and D.
        sums: How each contribution is a sum.
        present: All nodes that are connected and answer, those that do not train in the round too.
    """

    result: RoundResult
    ask: Callable[[dict[Node, dict[str, Any]]], list[Message]]
    leave_out: LeaveOut
    observe: Callable[[Node, Mapping[str, Any]], None]
    numbers: Callable[[Node, RecordDict], Mapping[str, Any]]
    alike: bool
    declared: Declaration
    sizes: Mapping[str, int]
    sums: Mapping[str, Sum]
    present: Sequence[Node] = ()


class ServerFeature:
    """The server's side of a feature: one object a run.

    Attributes:
        name: The feature's name, as ``fedshift_core.features`` has it.
        run: The run.
        state: What it keeps from round to round; saved with the checkpoint, never sent. Names begin with one of
            ``prefixes``.
    """

    prefixes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str, run: RunContext, params: Params) -> None:
        self.name, self.run, self.params = name, run, params
        self.state: Arrays = {}

    def description(self) -> str:
        """Return a line on what the feature does in this run, for its beginning; empty for nothing."""
        return ""

    def description_of(self, nodes: Sequence[Node]) -> tuple[str, ...]:
        """Return lines on what the feature does on the nodes, once they are known."""
        return ()

    # --- before and during training ----------------------------------------------------------------

    def check_number(self, nodes: int) -> None:
        """Raise ``FederationError`` if the feature cannot do its work with so many nodes in a round."""

    def check_nodes(self, nodes: Sequence[Node]) -> None:
        """Raise ``FederationError`` if the feature cannot do its work with the nodes of this run."""

    def start_round(self) -> None:
        """Begin a round."""

    def passed(self, phase: str) -> None:
        """Note that a phase of the round is over (``fedshift_strategies.federation.context``)."""

    def observe(self, node: Node, metrics: Mapping[str, Any]) -> None:
        """Take in the numbers of any reply that is used; they are checked."""

    def noise(self) -> float:
        """Return the standard deviation of the noise that honest nodes add to each weight."""
        return 0.0

    def before_training(self, nodes: list[Node], exchange: Exchange) -> list[Node]:
        """Ask nodes what must be known before they train, and return those that train."""
        return nodes

    def train_options(self, node: Node, training: Training) -> dict[str, Any]:
        """Return what a message to train has in its record ``config`` for this node."""
        return {}

    def gather(
        self, asked: Mapping[int, Node], replies: list[Message], exchange: Exchange, sent: SentWeights
    ) -> Sifted | None:
        """Return what the replies of a round come to; None to leave it to others.

        Args:
            asked: The nodes that were sent the round, by their id.
            replies: One of each at most.
            exchange: For further questions.
            sent: The shared weights that they were sent.
        """
        return None

    def train_bounds(self, node: Node, training: Training) -> Known:
        """Return what numbers a reply to it may hold."""
        return {}

    def read_train(self, metrics: Mapping[str, Any]) -> None:
        """Raise ``Refused`` if numbers, each of which is allowed, do not go together."""

    # --- the average -------------------------------------------------------------------------------

    def weights(self, updates: list[Update], training: Training) -> list[float] | None:
        """Return one weight per update, summing to 1; None to leave it to the method."""
        return None

    def merge(self, updates: list[Update], weights: list[float], training: Training) -> ArrayRecord | None:
        """Return the next shared weights; None to leave it to others. The list may be emptied on the way."""
        return None

    def step(self, merged: ArrayRecord, training: Training) -> ArrayRecord:
        """Return the next shared weights after the average; by default the average itself."""
        return merged

    def after_training(
        self, updates: list[Update], training: Training, result: RoundResult, leave_out: LeaveOut
    ) -> None:
        """Write into the round's result what the updates say for the feature; they are not merged yet."""

    # --- scores (``fedshift_strategies.federation.evaluation.Extra``) -----------------------------------------

    def before_scores(self, session: Session, result: RoundResult) -> None:
        """Ask nodes what must be known before models are scored."""

    def hidden_means(self, question: Question, session: Session) -> Means | None:
        """Have a question of another feature answered so that nobody sees a single answer; None to leave it to others.

        Raises:
            FederationError: If too few nodes answer.
        """
        return None

    def score_options(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return what a message to evaluate has in its record ``config``."""
        return {}

    def sent_records(self, options: Mapping[str, Any]) -> dict[str, Arrays]:
        """Return records of arrays that go with a message that has these options."""
        return {}

    def other_scores(self) -> tuple[str, ...]:
        """Return the names of other ways to score."""
        return ()

    def counts_other(self, name: str, *, held: bool) -> bool:
        """Tell whether another score is used for a domain. ``held`` says whether a node holds it."""
        return True

    def asks_all(self) -> bool:
        """Tell whether all nodes are asked with the first questions, also those without a part."""
        return False

    def score_records(self, evaluation: Evaluation) -> tuple[str, ...]:
        """Return the names of the records that a reply may have besides its numbers."""
        return ()

    def score_bounds(self, node: Node, parts: Sequence[Part], evaluation: Evaluation) -> Known:
        """Return what numbers a node's reply may hold for the feature."""
        return {}

    def read_scores(self, content: RecordDict, answers: Sequence[Answer], evaluation: Evaluation) -> Mapping[str, Any]:
        """Return what the reply says for the feature, by domain; raise ``Refused`` where it makes no sense."""
        return {}

    def take_scores(self, node: Node, metrics: Mapping[str, Any], evaluation: Evaluation) -> None:
        """Take in the numbers of a reply that is used."""

    def scored(self, evaluation: Evaluation, result: RoundResult) -> None:
        """Write into the round's result what came of the scores."""

    def finish_round(self, result: RoundResult) -> None:
        """Write into the round's result what is known only at its end."""
