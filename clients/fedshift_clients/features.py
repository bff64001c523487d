"""What a feature may do on a node: the six hooks of its node half, and the chain of those that a run turns on.

A feature is middleware: ``next(call)`` is the rest of a node's work on a message, so before, after and around it are
ordinary code. Only the features that the run's configuration turns on are built.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedshift_clients.training.eval_slices import Scores
from fedshift_clients.training.inputs import Observer
from fedshift_core import extensions
from fedshift_core.arrays import Arrays
from fedshift_core.disclosure import IMAGE, Word
from fedshift_core.errors import FedShiftError
from fedshift_core.features import CORE, Feature, Key, of_run, on_in
from fedshift_core.limits import MOST_NAME, as_found, plain
from fedshift_core.options.run import RunSettings
from fedshift_core.params import Params
from fedshift_core.registry import imported
from fedshift_core.secure.identity import Signer
from fedshift_core.secure.statement import Statement
from fedshift_core.yaml_files import written
from fedshift_datasets.base import ImageSet

if TYPE_CHECKING:
    from fedshift_clients.base import DomainClient

Metrics = dict[str, Any]
Hook = Literal["on_train", "on_scores"]


class Place(IntEnum):
    """Where a feature stands around a node's work, from the network inwards to the model.

    What stands further out sees all that is further in, and nothing is added to a reply outside of it. So what protects
    a reply is outermost, and what measures a model stands within the weights, which are taken into it at their place.
    """

    #: Masks the whole reply: a number that was added outside would travel bare.
    MASK = 0
    #: Takes out or noises what tells of images, before it is masked.
    NOISE = 1
    #: Measures the time of all further in; noise and masks are not the method's.
    CLOCK = 2
    #: Gives the client what came with the message: a method may train as soon as it has the weights (FedALA).
    INPUTS = 3
    #: The weights of the message are taken into the model.
    WEIGHTS = 4
    #: Changes how the model trains or scores, for all that scores with it.
    MODEL = 5
    #: Adds numbers and records of the model.
    NUMBERS = 6


@dataclass(frozen=True, kw_only=True)
class Request:
    """A message to a node, and what it is held against.

    Attributes:
        kind: ``train``, ``evaluate`` or ``query``.
        given: Its record ``config``.
        records: The names of its records.
        config: The configuration of the run, which the message holds.
        shared: The node is simulated and sees whole test sets.
        own_domains: The domains whose test images the node has.
        scores: Test images are to be scored.
        sums: What the run's method contributes as sums, NAME=KIND each (``fedshift_core.secure.layout``).
    """

    kind: str
    given: Mapping[str, Any]
    records: frozenset[str] = frozenset()
    config: RunSettings
    shared: bool
    own_domains: tuple[str, ...]
    scores: bool = False
    sums: tuple[str, ...] = ()

    @property
    def server_round(self) -> int:
        """The round, of a message that passed the rule of it; 0 of a query."""
        return int(self.given.get("server-round", 0))

    @property
    def private(self) -> str:
        """Why nothing of training images may leave without noise; empty where the run has no noise."""
        name = self.config.privacy.name
        return "" if name == "none" else f"this run has privacy.name={name}"

    def but(self, key: str, why: str) -> str:
        """Return that the message's value of a key is refused, and why; empty without a reason, or such a key."""
        if not why or key not in self.given:
            return ""
        return f"the server sends {plain(key, MOST_NAME)}={as_found(self.given[key])}, but {why}"

    def no_record(self, *names: str) -> str:
        """Return that the kind of message has no such records, if there is one of them."""
        strange = min(self.records.intersection(names), default=None)
        return "" if strange is None else f"a message to {self.kind} has no record {plain(strange, MOST_NAME)!r}"

    def refuse_domains(self, value: Any) -> str:
        """Return why the value names domains that the node does not score; each is to be named once."""
        whose = "this run has" if self.shared else "this node holds"
        fits = isinstance(value, list) and len(set(value)) == len(value) and set(value) <= set(self.own_domains)
        return "" if fits else f"{whose} {', '.join(self.own_domains)}, each to be named once"

    def refuse_score(self) -> str:
        """Return why nothing is scored in this round; empty where the run scores it."""
        evaluate, rounds = self.config.evaluate, self.config.rounds
        if evaluate.scores_global(self.server_round, rounds):
            return ""
        return f"round {self.server_round} is not scored: this run has evaluate.every={evaluate.every} ({self.late})"

    @property
    def late(self) -> str:
        """What decides which rounds are the last ones."""
        return f"rounds={self.config.rounds}, evaluate.last={self.config.evaluate.last}"


def is_count(value: Any, least: int, most: int) -> bool:
    """Tell whether a value is a whole number within bounds."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


@dataclass(frozen=True)
class About:
    """What a node knows of itself before the first round.

    Attributes:
        images: Number of images in each of its own sets that it does not train on, by split.
        public: SHA-256 and number of images of its copy of the public set; None where the run uses none.
    """

    images: Mapping[str, int]
    public: tuple[str, int] | None


@dataclass(frozen=True)
class Site:
    """What a node's own training images are.

    Attributes:
        images: The images.
        files: Width and height, and Pillow's mode, of each one's file; nothing where they are no image files.
    """

    images: ImageSet
    files: Sequence[tuple[tuple[int, int], str]]


@dataclass(frozen=True, kw_only=True)
class Message:
    """What a node is asked, after it was held against the run's configuration.

    Attributes:
        config: The configuration of the run.
        options: What features ask for.
        server_round: The round, from 1; 0 of a message before the first.
        index: The node's place in the order of the federation.
        run: Names the run for as long as its server lives.
        state: What the feature of a name keeps between messages: numbers, texts, bytes and lists of them; to be changed
            in place.
    """

    config: RunSettings
    options: Mapping[str, Any]
    server_round: int
    index: int
    run: str = ""
    state: Callable[[str], MutableMapping[str, Any]] = lambda name: {}


@dataclass(frozen=True, kw_only=True)
class Question(Message):
    """A question of a feature.

    Attributes:
        signer: Returns the long-term key of a real node; None where it has none.
        trusted: Fingerprints of the nodes that the owner trusts in a secure sum; empty: any.
        statement: Returns what the node states of its images in a secure sum.
        weigh: Returns by what nodes that state so much are multiplied in a sum of a purpose.
        once: Notes over which nodes something was summed; False where it was over others before.
        site: Returns the node's training images.
        least_images: Least images behind a number that its owner lets out; 1 without an owner.
        withheld: Features whose answers the owner does not let out at all.
        secret: The owner's, which decides orders of the node's images; None: the run's seed does.
    """

    signer: Callable[[], Signer | None]
    trusted: tuple[str, ...]
    statement: Callable[[], Statement]
    weigh: Callable[[Sequence[Statement], str], tuple[float, ...]]
    once: Callable[[bytes, bytes], bool]
    site: Callable[[], Site]
    least_images: int
    withheld: frozenset[str]
    secret: int | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Call(Message):
    """A message about weights.

    Attributes:
        client: The method's, with what it keeps.
        sent: The shared weights as they came, in the order of the client's ``shared_names``.
        records: Arrays of features that came along, by record.
        started: When the work began, as ``time.perf_counter`` has it.
        mixed: Test images are scored in an order that mixes their classes.
        observers: Each looks on while test images are scored, by name; it is made for the images of a pass.
        keep: Keeps what the node remembers of its training.
    """

    client: "DomainClient[Any]"
    sent: Arrays
    records: Mapping[str, Arrays] = field(default_factory=dict)
    started: float = 0.0
    mixed: bool = False
    observers: Mapping[str, Callable[[ImageSet], Observer]] = field(default_factory=dict)
    keep: Callable[[], None] = lambda: None

    def observed_by(self, name: str, make: Callable[[ImageSet], Observer]) -> "Call":
        """Return the call with one more observer."""
        return replace(self, observers={**self.observers, name: make})


@dataclass(frozen=True)
class Reply:
    """What a node is about to send.

    Attributes:
        images: Images that it worked on.
        metrics: Numbers; to be changed in place.
        weights: The shared weights after local training, by name.
        knowledge: What the method contributes; or an answer in place of scores. None with scores.
        records: Arrays of features, by record; to be changed in place.
        scores: How the model did, by domain.
        means: An answer's arrays as means, in units in which they are means of numbers of about 1, float64.
        powers: Which power of such a number each is a mean of, by name.
    """

    images: int
    metrics: Metrics = field(default_factory=dict)
    weights: Arrays = field(default_factory=dict)
    knowledge: Arrays | None = None
    records: dict[str, Arrays] = field(default_factory=dict)
    scores: dict[str, Scores] = field(default_factory=dict)
    means: Arrays = field(default_factory=dict)
    powers: Mapping[str, int] = field(default_factory=dict)


Next = Callable[[Call], Reply]


class NodeFeature:
    """The node's side of a feature. It keeps nothing between messages but in ``Call.state``.

    Attributes:
        name: The feature's name, as ``fedshift_core.features`` has it.
        params: Its parameters.
    """

    place: ClassVar[Place] = Place.NUMBERS
    #: Records that a message may bring; ``refuse`` says when.
    takes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str, params: Params) -> None:
        self.name, self.params = name, params

    def refuse(self, request: Request) -> str:
        """Return why a message is not what the run's configuration has it ask of this feature; empty if it is."""
        return ""

    def attach(self, client: "DomainClient[Any]", config: RunSettings) -> None:
        """Give a client that has just been made what holds as long as it lives."""

    def introduce(self, about: About) -> tuple[Metrics, dict[str, str]]:
        """Return numbers and words that the node says of itself before the first round."""
        return {}, {}

    def answer(self, call: Question) -> dict[str, Any] | None:
        """Return the answer to a question of the feature, in place of an introduction; None to others."""
        return None

    def on_train(self, call: Call, next: Next) -> Reply:
        """Return what leaves the node of its training; ``next`` trains. ``FedShiftError`` refuses it."""
        return next(call)

    def on_scores(self, call: Call, next: Next) -> Reply:
        """Return what leaves the node of its scores; ``next`` scores. A reply with ``knowledge`` takes their place."""
        return next(call)


class _Weights(NodeFeature):
    """Takes the weights of a message into the model."""

    place = Place.WEIGHTS

    def on_train(self, call: Call, next: Next) -> Reply:
        return call.client.with_weights(call, next)

    on_scores = on_train


class Features:
    """The features of a run on the node: those that its configuration turns on.

    Args:
        turned_on: Each with its parameters.
        config: The configuration; None for a client outside of a run.

    Attributes:
        declared: What they declare.
        keys: What a message of a kind may have in its record ``config``, by kind and name.
    """

    def __init__(self, turned_on: Iterable[tuple[Feature, Params]] = (), config: RunSettings | None = None) -> None:
        self.config: Any = config
        pairs = tuple(turned_on)
        self.declared: list[Feature] = [feature for feature, _ in pairs]
        made = [(feature, imported(feature.node)(feature.name, params)) for feature, params in pairs if feature.node]
        self._all: list[tuple[Feature, NodeFeature]] = sorted(
            [(CORE, _Weights("", Params())), *made], key=lambda pair: pair[1].place
        )
        self.keys: dict[str, dict[str, Key]] = {
            kind: {key.name: key for feature, _ in made for key in getattr(feature, kind)}
            for kind in ("train", "evaluate", "query")
        }

    # --- what is declared --------------------------------------------------------------------------

    @property
    def takes(self) -> set[str]:
        """Names of the records that a message may bring."""
        return {name for _, half in self._all for name in half.takes}

    def images(self, kind: str) -> list[Key]:
        """Return what features declare to be numbers of the node's own images in a kind of message."""
        return [key for feature in self.declared for key in getattr(feature, kind) if key.images]

    def word(self, record: str) -> Word:
        """Return what the arrays of a record tell of images; the strictest where its feature says nothing."""
        named = ((key, feature) for feature in self.declared for key in feature.records if key.name == record)
        return next((word for key, feature in named if (word := key.word or feature.word)), IMAGE)

    # --- the hooks ---------------------------------------------------------------------------------

    def refuse(self, request: Request) -> str:
        """Return why a message is not what the configuration has it ask of features; empty if it is."""
        for name, key in self.keys[request.kind].items():
            if name in request.given and (why := request.but(name, key.refuse(request.given[name]))):
                return why
        return next((why for _, half in self._all if (why := half.refuse(request))), "")

    def refuse_key(self, kind: str, name: str) -> str:
        """Return why a kind of message has no key of this name: its feature is off, or there is none."""
        for feature, _ in of_run(self.config.features):
            if any(key.name == name for key in getattr(feature, kind)):
                value = written(functools.reduce(getattr, feature.key.split("."), self.config))
                return f"this run has {feature.key}={value}".replace('"', "")
        return f"a message to {kind} has no such key"

    def attach(self, client: "DomainClient[Any]", config: RunSettings) -> None:
        """Give a client that has just been made what holds as long as it lives."""
        for _, half in self._all:
            half.attach(client, config)

    def introduce(self, about: About) -> tuple[Metrics, dict[str, str]]:
        """Return numbers and words that the node says of itself."""
        numbers: Metrics = {}
        words: dict[str, str] = {}
        for feature, half in self._all:
            more, said = half.introduce(about)
            _check(feature, {**more, **said}, "introduction")
            numbers, words = numbers | more, words | said
        return numbers, words

    def answer(self, call: Question) -> dict[str, Any] | None:
        """Return the answer to a question of a feature; None where the message asks what the node is."""
        for feature, half in self._all:
            if (answer := half.answer(call)) is not None:
                _check(feature, answer, "query_reply")
                return answer
        return None

    def run(self, hook: Hook, call: Call, end: Next) -> Reply:
        """Return what leaves the node of a call; ``end`` is the client's own work, the innermost."""
        kind = "train_reply" if hook == "on_train" else "evaluate_reply"
        for feature, half in reversed(self._all):
            if getattr(type(half), hook) is not getattr(NodeFeature, hook):
                end = _linked(feature, getattr(half, hook), kind, end)
        return end(call)


def _linked(feature: Feature, hook: Callable[[Call, Next], Reply], kind: str, next: Next) -> Next:
    """Return a link of the chain; it refuses to send what its feature adds and does not declare."""

    def link(call: Call) -> Reply:
        inside: set[str] = set()

        def noted(call: Call) -> Reply:
            reply = next(call)
            inside.update(reply.metrics, reply.records)
            return reply

        reply = hook(call, noted)
        _check(feature, {*reply.metrics, *reply.records} - inside, kind, "records")
        return reply

    return link


def _check(feature: Feature, names: Iterable[str], *kinds: str) -> None:
    declared = [key for kind in kinds for key in getattr(feature, kind)]
    for name in sorted(names):
        if not any(key.fits(name) for key in declared):
            raise FedShiftError(f"the feature {feature.name} would send {name!r}, which it does not declare")


@extensions.cleared_on_change
@functools.lru_cache(maxsize=8)
def of(config: RunSettings) -> Features:
    """Return the features of a run."""
    return Features(on_in(config), config)
