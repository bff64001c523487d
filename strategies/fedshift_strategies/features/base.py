"""A feature on the server: seven hooks and a state. They do nothing unless a feature overrides them.

A hook with ``next`` is handed the rest of the work as a function: what comes before the call, after it, or in its place
is ordinary code. :meth:`ServerFeature.on_round` and :meth:`ServerFeature.on_scores` have a ``yield`` in that place, as
Flower asks nodes between two calls of a strategy.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from flwr.app import ArrayRecord, Message, RecordDict

from fedshift_core.arrays import Arrays
from fedshift_core.params import Params
from fedshift_strategies.federation.checks import Known, Range
from fedshift_strategies.federation.context import RoundResult, RunContext
from fedshift_strategies.federation.evaluation import Asked, Evaluation
from fedshift_strategies.federation.nodes import Node
from fedshift_strategies.federation.update_norms import SentWeights
from fedshift_strategies.federation.updates import Sifted, Update

if TYPE_CHECKING:  # it has features
    from fedshift_strategies.hooks import MethodHooks

#: Also what a feature's half on the server is written with.
__all__ = [
    "Asked",
    "Evaluation",
    "Gather",
    "Known",
    "LeaveOut",
    "Merge",
    "Node",
    "Params",
    "Phase",
    "Question",
    "Range",
    "RoundResult",
    "RunContext",
    "Scoring",
    "SentWeights",
    "ServerFeature",
    "Sifted",
    "Steps",
    "Training",
    "Update",
    "Weigh",
]

LeaveOut = Callable[..., None]  # node, reason, lost=False
Steps = Generator[Asked | None, None, None]


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


@dataclass
class Phase:
    """A part of a round, as features see it.

    Attributes:
        result: What the round comes to.
        method: The method's half on the server.
        all_nodes: All nodes of the federation, also those that are not there.
        nodes: The nodes that are sent the round. Of scores those that trained in it; all connected ones where none did.
        weights: The shared weights that nodes are sent.
        query: Sends each node its own question, without weights, and returns the answers; other messages are not among
            them.
        leave_out: Is handed each node whose answer is not used, why, and whether it is ``lost``.
        observe: Is handed the numbers of each reply that is used.
        observers: Are handed them too.
    """

    result: RoundResult
    method: "MethodHooks[Any]"
    all_nodes: Sequence[Node]
    nodes: list[Node]
    weights: ArrayRecord
    query: Callable[[dict[Node, dict[str, Any]]], list[Message]]
    leave_out: LeaveOut
    observe: Callable[[Node, Mapping[str, Any]], None]
    observers: list[Callable[[Node, Mapping[str, Any]], None]] = field(default_factory=list)

    @property
    def server_round(self) -> int:
        """The round, from 1; 0 of a run without rounds."""
        return self.result.server_round


@dataclass
class Training(Phase):
    """The training of a round.

    Attributes:
        present: All nodes that are connected and answer, those that do not train in the round too.
        scored: Models can be scored after this round.
        noise: Returns the standard deviation of the noise that honest nodes add to each weight.
        numbers: Returns the numbers of a reply; raises ``Refused`` where others are in it.
        updates: What nodes delivered, without weights, once they are read.
    """

    present: Sequence[Node] = ()
    scored: bool = True
    noise: Callable[[], float] = float  # 0
    numbers: Callable[[Node, RecordDict], Mapping[str, Any]] = lambda node, content: {}
    updates: Sequence[Update] = ()


@dataclass
class Scoring(Phase):
    """The scores after a round.

    Attributes:
        ask: Sends nodes, each with its work in images, a question about the weights, and returns their answers. A third
            argument, if given, has by node what it alone is asked besides.
        means: Has a question answered of which only means need be known; None where the answers are not hidden, so that
            they may as well be asked for.
        evaluation: Who scores what, once that is planned.
    """

    ask: Callable[..., Iterable[Message]] = lambda work, options, own=None: ()
    means: Callable[[Question], Arrays | None] = lambda question: None
    evaluation: Evaluation = field(init=False)


class ServerFeature:
    """The server's side of a feature: one object a run, which has it on.

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

    def describe(self, nodes: Sequence[Node]) -> Iterable[str]:
        """Return lines on what the feature does in this run, before its first round.

        Args:
            nodes: All nodes of the run.

        Raises:
            FederationError: If it cannot do its work with them.
        """
        return ()

    # --- a round -----------------------------------------------------------------------------------

    def on_round(self, training: Training) -> Steps:
        """Act around the training of a round: yield once, what is added to the messages, or nothing.

        Before the ``yield`` nodes may be asked, and those that do not train be taken from ``training.nodes``. After it
        the next shared weights are there.

        Raises:
            FederationError: If it cannot do its work with so many nodes.
        """
        yield None

    def gather(self, replies: list[Message], training: Training, sent: SentWeights, next: "Gather") -> Sifted:
        """Return what the replies of a round come to.

        Args:
            replies: One of each node at most.
            training: The training.
            sent: The weights that nodes were sent.
            next: Reads each reply as an update.
        """
        return next(replies)

    def weights(self, updates: list[Update], training: Training, next: "Weigh") -> list[float]:
        """Return one weight per update, summing to 1; ``next`` are those of the run's rule, or of the method."""
        return next(updates)

    def merge(self, updates: list[Update], weights: list[float], training: Training, next: "Merge") -> ArrayRecord:
        """Return the next shared weights; ``next`` is the method's average. The list may be emptied on the way."""
        return next(updates, weights)

    def on_scores(self, scoring: Scoring) -> Steps:
        """Act around the scores after a round: yield once, what is added to the questions, or nothing.

        After the ``yield`` the round's result has the scores.
        """
        yield None

    def means(self, question: Question, scoring: Scoring) -> Arrays | None:
        """Return the answer to another feature's question so that nobody sees a single node's; None: not here.

        It holds means over all images of the nodes together, by name, (C,), float64.

        Raises:
            FederationError: If too few nodes answer.
        """
        return None


Gather = Callable[[list[Message]], Sifted]
Weigh = Callable[[list[Update]], list[float]]
Merge = Callable[[list[Update], list[float]], ArrayRecord]
