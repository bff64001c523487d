"""Messages as the node half of a feature has them: one that is checked, a question, a call; and the reply."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from fedshift_clients.training.eval_slices import Scores
from fedshift_clients.training.inputs import Observer
from fedshift_core.arrays import Arrays
from fedshift_core.limits import MOST_NAME, as_found, plain
from fedshift_core.run_settings import RunSettings
from fedshift_core.secure.identity import Signer
from fedshift_core.secure.statement import Statement
from fedshift_datasets.base import ImageSet

if TYPE_CHECKING:
    from fedshift_clients.base import DomainClient

Metrics = dict[str, Any]


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
        """The keys that decide which rounds are the last ones."""
        return f"rounds={self.config.rounds}, evaluate.last={self.config.evaluate.last}"


def is_count(value: Any, least: int, most: int) -> bool:
    """Tell whether a value is a whole number within bounds."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


@dataclass(frozen=True)
class About:
    """Facts that a node knows of itself before the first round.

    Attributes:
        images: Number of images in each of its own sets that it does not train on, by split.
        public: SHA-256 and number of images of its copy of the public set; None where the run uses none.
    """

    images: Mapping[str, int]
    public: tuple[str, int] | None


@dataclass(frozen=True)
class Site:
    """A node's own training images.

    Attributes:
        images: The images.
        files: Width and height, and Pillow's mode, of each one's file; nothing where they are no image files.
    """

    images: ImageSet
    files: Sequence[tuple[tuple[int, int], str]]


@dataclass(frozen=True, kw_only=True)
class Message:
    """A question to a node, after it was held against the run's configuration.

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
        once: Notes over which nodes things were summed, or returns the first that was over others before.
        site: Returns the node's training images.
        least_images: Least images behind a number that its owner lets out; 1 without an owner.
        withheld: Features whose answers the owner does not let out at all.
        secret: The owner's, which decides orders of the node's images; None: the run's seed does.
    """

    signer: Callable[[], Signer | None]
    trusted: tuple[str, ...]
    statement: Callable[[], Statement]
    weigh: Callable[[Sequence[Statement], str], tuple[float, ...]]
    once: Callable[[Sequence[bytes], bytes], bytes | None]
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

    @classmethod
    def to(cls, client: "DomainClient[Any]", sent: Arrays, **others: Any) -> Self:
        """Return a call of a client, in whose run and place it is."""
        return cls(client=client, sent=sent, config=client.features.config, index=client.setup.index, **others)

    def observed_by(self, name: str, make: Callable[[ImageSet], Observer]) -> "Call":
        """Return the call with one more observer."""
        return replace(self, observers={**self.observers, name: make})


@dataclass(frozen=True)
class Reply:
    """The content of what a node is about to send.

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
