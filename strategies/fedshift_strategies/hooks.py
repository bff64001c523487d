"""The hooks of a method on the server. By itself each does what FedAvg does.

A method overrides a few: ``start_run`` (what must be there before round 1), ``weights`` (how nodes weigh), ``merge``
(how updates become the next weights), ``contributes`` and ``merge_knowledge`` (what nodes contribute besides weights),
``knowledge_for`` and ``tell`` (what a node is sent). What must outlive a round is in ``knowledge`` (may be sent) or
``state`` (never is). The round that calls them is in :mod:`fedshift_strategies.base`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar
from weakref import ref

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

from fedshift_core.arrays import Arrays
from fedshift_core.disclosure import Word, checked
from fedshift_core.params import P, Parametrised
from fedshift_core.secure.layout import BY_CLASS, COUNTS, Sum
from fedshift_strategies.contributions import Declaration
from fedshift_strategies.features.base import Training
from fedshift_strategies.features.catalog import Features
from fedshift_strategies.federation.averaging import shares
from fedshift_strategies.federation.checks import Range
from fedshift_strategies.federation.context import Ask, RoundResult, RunContext
from fedshift_strategies.federation.roster import Node, Roster
from fedshift_strategies.federation.updates import Update, average
from fedshift_strategies.weighting import by_rule, check_weights

Observer = Callable[[RoundResult, ArrayRecord], None]
Scalars = Mapping[str, int | float | str]
ScalarBounds = Range | tuple[str, ...]


class MethodHooks(FedAvg, Parametrised[P]):
    """The hooks of a method, each of which does what FedAvg does, and the tools for them.

    Attributes:
        knowledge: What the method shares besides weights; saved after each round, sent as ``knowledge_for`` says.
        state: What only the server keeps; saved after each round, never sent.
        features: What composes with the method in this run; what they keep is :attr:`moments`, as ``state``.
        last_nodes: Indices of the nodes whose updates were used in the last round, in their order.
    """

    #: What nodes contribute besides weights, for all settings of the method; :meth:`expected` says what in this run.
    contributes: ClassVar[Declaration] = {}
    #: The word of each array of it (``fedshift_core.disclosure``), of class prototypes and counts ``class`` by default,
    #: of others the strictest; and words that another setting makes of some
    #: (:func:`fedshift_strategies.contributions.behind`).
    behind: ClassVar[Mapping[str, Word]] = {}
    behind_with: ClassVar[Mapping[str, Mapping[str, Word]]] = {}
    #: Names of what :meth:`knowledge_for` and :meth:`tell` give nodes, ``*`` for any letters; nodes refuse others.
    #: None: it does not say (:func:`fedshift_strategies.contributions.declared`).
    sends: ClassVar[tuple[str, ...] | None] = None
    #: Scalars may have bounds, by name: numbers of a range, or one of some words.
    tells: ClassVar[tuple[str, ...] | Mapping[str, ScalarBounds] | None] = None
    #: Of these, what nodes send, or are sent, only with a setting that is not the default: by name that setting, as
    #: tables say it.
    optional: ClassVar[Mapping[str, str]] = {}
    #: Whether nodes need ``knowledge`` to score; if not, only those that train are sent it.
    scores_with_knowledge: ClassVar[bool] = True
    #: What :meth:`sums` returns, where it does not go by parameters.
    summed: ClassVar[Mapping[str, Sum]] = {}
    #: Hooks that the method overrides and that work as well with one update that stands for the sum of a round
    #: (``federation.secure_sums``): of ``merge`` and ``merge_knowledge``.
    of_sums: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Refuse words that are none of the four.

        Raises:
            ConfigError: With the array.
        """
        super().__init_subclass__()
        for name, word in (pair for words in (cls.behind, *cls.behind_with.values()) for pair in words.items()):
            checked(word, f"{cls.__name__}.behind[{name!r}]")

    def __init__(self, federation: RunContext, params: P, observer: Observer) -> None:
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=federation.engine.min_nodes)
        self.federation = fed = federation
        self.params = params
        self.features = Features(federation)
        self.knowledge: Arrays = {}
        self.state: Arrays = {}
        self.last_nodes: tuple[int, ...] = ()
        held_out = fed.config.allocation.held_out if fed.rounds else ()
        self.roster = Roster(
            fed.domains, fed.engine.name, fed.run_json, fed.num_classes, self.features.agreement, held_out
        )
        self.roster.max_images = fed.config.federation.max_images
        self._observer = observer
        self._weights_of: tuple[list[ref[Update]], list[float]] = ([], [])
        self._result = RoundResult(0)
        self._global = ArrayRecord()
        self._training: Training

    # --- hooks of a method -------------------------------------------------------------------------

    @classmethod
    def check_run(cls, params: P, rounds: int) -> None:
        """Raise ``ConfigError`` if the method cannot run so; called before anything starts."""

    @classmethod
    def uses_rounds(cls, params: P) -> str:
        """Return what of the method goes by the number of rounds of the run; empty if nothing does.

        Of such a method a run cannot be made longer when it is resumed: its first rounds would have been others.
        """
        return ""

    @classmethod
    def averages(cls) -> bool:
        """Tell whether weights are merged by the default rule, which ``aggregation.robust`` and ``server`` build on."""
        return cls.merge is MethodHooks.merge

    @classmethod
    def sums(cls, params: P) -> Mapping[str, Sum]:
        """Return which contributions need only be known as sums over nodes, each with how it is one.

        By default :attr:`summed`. An update that stands for a sum has the mean that the kind says, and in ``counts``
        the images of all nodes, or with ``nodes`` how many nodes hold a class. Names that nodes do not send with these
        parameters may be there.
        """
        return cls.summed

    @classmethod
    def needs_single(cls, params: P) -> str:
        """Return what needs the reply of each single node, which secure sums withhold; empty if nothing does."""
        known = cls.sums(params)
        if needed := [name for name in cls.contributes if name not in known]:
            return f"it needs {', '.join(needed)} of each node"
        if COUNTS not in known and (rows := [name for name, how in known.items() if how in BY_CLASS]):
            return f"it sends {', '.join(rows)} by class without counts"
        hooks = ["weights", "merge", *([] if cls.contributes else ["merge_knowledge"])]
        own = [name for name in hooks if getattr(cls, name) is not getattr(MethodHooks, name)]
        if needed := [name for name in own if name == "weights" or name not in cls.of_sums]:
            return f"its own rule ({', '.join(needed)}) reads the weights of each node"
        return ""

    def scores_round(self, server_round: int) -> bool:
        """Tell whether models can be scored at all after this round."""
        return True

    @classmethod
    def weighs_alike(cls, params: P) -> bool:
        """Tell whether each node of a round weighs the same; by default each image does."""
        return False

    def weights(self, updates: list[Update]) -> list[float]:
        """Return one weight per update, summing to 1; by default as :meth:`weighs_alike` says, alike or by images.

        Nodes of a secure sum work weights out themselves, by that alone: a method that overrides this does not fit.
        """
        if self.weighs_alike(self.params):
            return [1 / len(updates)] * len(updates)
        return shares([update.num_examples for update in updates])

    def start_run(self, weights: ArrayRecord) -> None:
        """Prepare ``knowledge`` and ``state`` once, before round 1 of a run; ``weights`` are the initial ones.

        A run that is resumed finds both as they were. (Flower calls its whole loop ``start``.)
        """

    def merge(self, updates: list[Update], weights: list[float]) -> ArrayRecord:
        """Return the next shared weights; by default the weighted average.

        Features that build on an average of weights refuse a method that overrides this.

        Args:
            updates: In the order of the nodes. The list may be emptied on the way, so that weights can be let go.
            weights: One per update, summing to 1.
        """
        return average(updates, weights)

    def scored_weights(self) -> ArrayRecord:
        """Return the shared weights that nodes score; by default those that the next round begins with."""
        return self._global

    def knowledge_for(self, node: Node, ask: Ask) -> Arrays:
        """Return the arrays that this node is sent besides weights; by default ``knowledge``, the same for all.

        To score it is sent none where :attr:`scores_with_knowledge` is false.

        An array that several nodes get is written once, if it is the same object.
        """
        return self.knowledge if ask.trains or self.scores_with_knowledge else {}

    def tell(self, node: Node, ask: Ask) -> Scalars:
        """Return the numbers and words for this node: ``self.scalars`` of its client."""
        return {}

    def expected(self) -> Declaration:
        """Return what nodes contribute in this run, of what ``contributes`` declares; by default all of it."""
        return self.contributes

    def comparable(self, knowledge: Arrays, nodes: Sequence[Node]) -> Arrays:
        """Return a contribution in the form in which nodes are compared; by default as it is.

        Sums grow with a node's images, and whole numbers have no length: a method that declares some returns what they
        come to for an image, in floats. Secure sums hold that of all nodes together against their range.

        Args:
            knowledge: As ``expected`` declares it; checked.
            nodes: Those whose contribution it is.

        Raises:
            Refused: If no images of theirs could have given it.
        """
        return knowledge

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Turn the nodes' contributions, in the order of their index, into ``self.knowledge``."""

    # --- tools for methods -------------------------------------------------------------------------

    @property
    def server_round(self) -> int:
        """The round that is going on, from 1; 0 before the first."""
        return self._result.server_round

    def noted(self, name: str) -> list[int]:
        """Return the whole numbers that ``state`` has under a name, such as indices of nodes; none without it."""
        return self.state[name].tolist() if name in self.state else []

    @property
    def sent(self) -> ArrayRecord:
        """The shared weights that nodes are sent in this round, without what is frozen; after ``merge`` of the next."""
        return self._global

    def node_weights(self, updates: list[Update]) -> list[float]:
        """Return the weight of each update by the run's rule (``aggregation.weights``), else by the method's.

        The updates of a round are weighed once, whoever asks: some rules take a step each time.

        Raises:
            FederationError: If they are not as many as the updates, finite, from 0 up and 1 in sum.
        """
        known, weights = self._weights_of
        if not known or len(known) != len(updates) or any(a() is not b for a, b in zip(known, updates, strict=True)):
            weights = self.features.weights(updates, self._training, self._weigh_updates)
            self._weights_of = [ref(update) for update in updates], weights  # weak: a merge lets weights go
        return list(weights)

    def _weigh_updates(self, updates: list[Update]) -> list[float]:
        """Return the weight of each update by the run's rule, else by the method's."""
        rule, method = self.federation.config.aggregation, self.federation.config.method["name"]
        if (by := by_rule(rule, updates, self.roster.num_domains)) is not None:
            return check_weights(by, len(updates), f"aggregation.weights={rule.weights}")
        return check_weights(self.weights(updates), len(updates), f"the method {method!r}")

    @property
    def moments(self) -> Arrays:
        """What features keep from round to round, such as a server optimiser's moments; never sent."""
        return self.features.state

    @moments.setter
    def moments(self, arrays: Arrays) -> None:
        self.features.state = arrays
