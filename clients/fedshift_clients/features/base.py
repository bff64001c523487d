"""What a feature may do on a node: hooks, which do nothing unless a feature overrides them."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray
from torch import Generator, Tensor

from fedshift_clients.losses.imbalance import ClassLoss
from fedshift_clients.training.eval_slices import Scores
from fedshift_clients.training.inputs import ClientSetup, Normalizer, Observer, OtherTraining
from fedshift_clients.training.statistics import Moments
from fedshift_core.arrays import Arrays
from fedshift_core.params import Params
from fedshift_core.run_settings import RunSettings
from fedshift_core.secure.identity import Signer
from fedshift_core.secure.statement import Statement
from fedshift_core.wire.image_styles import ImageStyles
from fedshift_core.wire.site_images import FederationImages
from fedshift_datasets.base import ImageSet

Metrics = dict[str, Any]


class Client(Protocol):
    """What a feature uses of :class:`fedshift_clients.base.DomainClient`."""

    model: Any
    setup: ClientSetup
    class_names: tuple[str, ...]
    class_loss: ClassLoss
    passed: Callable[[str], None]
    trained_by: OtherTraining | None
    train_set: ImageSet
    own_sets: Mapping[str, ImageSet]
    test_set: Callable[[str], ImageSet]
    shared_names: list[str]
    server_round: int
    statistics: Arrays
    federation_images: FederationImages | None
    normalizer: Normalizer | None
    image_styles: ImageStyles | None

    def take(self, parameters: list[NDArray[Any]]) -> None:
        """Put shared weights into the model and let the method act on them."""

    def start_pass(self) -> None:
        """Begin a pass over images."""

    def score(self, images: ImageSet, predict: Callable[[Tensor], Tensor] | None = None) -> tuple[int, float]:
        """Return the number of correct predictions and the summed cross-entropy."""

    def score_test(self, test: ImageSet) -> Scores:
        """Score a test set, adapted to it if the run says so."""

    @property
    def mixes_tests(self) -> bool:
        """Whether test images come in an order that mixes their classes, whatever features ask."""

    def tests(self, request: Mapping[str, Any], *, mixed: bool = False) -> Iterator[tuple[str, ImageSet]]:
        """Yield each domain that a message names, with its test images to score."""

    def of_domain(self, domain: str) -> AbstractContextManager[None]:
        """Return what holds while images of a domain are scored."""

    def torch_rng(self, purpose: str, server_round: int) -> Generator:
        """Return a CPU generator for (run seed, purpose, node, round)."""

    def other_statistics(self) -> None:
        """Forget what was worked out of the received weights."""

    def other_weights(self) -> None:
        """Let the adaptation know that the model is another one."""

    def take_statistics(self, most: int) -> tuple[dict[str, Moments], int]:
        """Sum up what BatchNorm layers are given of training images."""

    def scoring_by_batch(self) -> AbstractContextManager[None]:
        """Let scores go by BatchNorm's statistics of each batch."""

    def observed_by(self, name: str, make: Callable[[ImageSet], Observer]) -> AbstractContextManager[None]:
        """Let an observer of this name, made for the images of a pass, look on at each pass over test images."""


@dataclass(frozen=True)
class Request:
    """A message to a node, and what it is held against.

    Attributes:
        kind: ``train``, ``evaluate`` or ``query``.
        given: Its record ``config``.
        config: The configuration of the run, which the message holds.
        shared: The node is simulated and sees whole test sets.
        own_domains: The domains whose test images the node has.
        sums: What the run's method contributes as sums, NAME=KIND each (``fedshift_core.secure.layout``).
    """

    kind: str
    given: Mapping[str, Any]
    config: RunSettings
    shared: bool
    own_domains: tuple[str, ...]
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


def word(value: bool) -> str:
    """Return a switch as a configuration has it: ``true`` or ``false``."""
    return str(value).lower()


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
class Reply:
    """What a node is about to send after local training.

    Attributes:
        weights: The shared weights, by name.
        knowledge: What the method contributes.
        metrics: Numbers.
    """

    weights: Arrays
    knowledge: Arrays
    metrics: Metrics


@dataclass(frozen=True)
class Answer:
    """What a node is about to send in place of scores.

    Attributes:
        arrays: Sums over its images, by name.
        images: How many images.
        means: The same as means, in units in which they are means of numbers of about 1, float64.
        powers: Which power of such a number each is a mean of, by name.
    """

    arrays: Arrays
    images: int
    means: Arrays = field(default_factory=dict)
    powers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Site:
    """What a node's own training images are.

    Attributes:
        images: The images.
        files: Width and height, and Pillow's mode, of each one's file; nothing where they are no image files.
    """

    images: ImageSet
    files: Sequence[tuple[tuple[int, int], str]]


def _of_questions(*given: Any) -> Any:
    raise RuntimeError("only a question of a feature may ask a node for that")


@dataclass(frozen=True)
class Call:
    """A message that a node works on, after it was held against the run's configuration.

    Attributes:
        config: The configuration of the run.
        options: What features ask for.
        server_round: The round, from 1; 0 of a message before the first.
        index: The node's place in the order of the federation.
        run: Names the run for as long as its server lives.
        state: What the feature keeps between messages: numbers, texts, bytes and lists of them; to be changed in place.
        signer: Returns the long-term key of a real node; None where it has none.
        trusted: Fingerprints of the nodes that the owner trusts in a secure sum; empty: any.
        statement: Returns what the node states of its images in a secure sum.
        weigh: Returns by what nodes that state so much are multiplied in a sum of a purpose.
        once: Notes over which nodes something was summed; False where it was over others before.
        site: Returns the node's training images, to answer a question.
        least_images: Least images behind a number that its owner lets out; 1 without an owner.
        withheld: Features whose answers the owner does not let out at all.
        secret: The owner's, which decides orders of the node's images; None: the run's seed does.
    """

    config: RunSettings
    options: Mapping[str, Any]
    server_round: int
    index: int
    run: str
    state: MutableMapping[str, Any]
    signer: Callable[[], Signer | None] = lambda: None
    trusted: tuple[str, ...] = ()
    statement: Callable[[], Statement] = _of_questions
    weigh: Callable[[Sequence[Statement], str], tuple[float, ...]] = _of_questions
    once: Callable[[bytes, bytes], bool] = _of_questions
    site: Callable[[], Site] = _of_questions
    least_images: int = 1
    withheld: frozenset[str] = frozenset()
    secret: int | None = field(default=None, repr=False)


class NodeFeature:
    """The node's side of a feature. It keeps nothing between messages but in ``Call.state``.

    Attributes:
        name: The feature's name, as ``fedshift_core.features`` has it.
    """

    def __init__(self, name: str, params: Params) -> None:
        self.name, self.params = name, params

    def attach(self, client: Client, config: RunSettings) -> None:
        """Begin to work with a client that has just been made."""

    # --- what a message may ask for ----------------------------------------------------------------

    def refuse(self, request: Request, key: str, value: Any) -> str:
        """Return why the run's configuration does not ask for this value of a key. It is empty if it does."""
        return ""

    def missing(self, request: Request) -> str:
        """Return what a message that asks for scores lacks; empty for nothing."""
        return ""

    def sent_records(self, request: Request) -> tuple[str, ...]:
        """Return the records of arrays that a message may have with what it asks for."""
        return ()

    def receive(self, client: Client, records: Mapping[str, Arrays]) -> None:
        """Take in the feature's records of a message; raise ``FedShiftError`` if they do not fit the model."""

    # --- what is added to replies ------------------------------------------------------------------

    def introduce(self, about: About) -> tuple[Metrics, dict[str, str]]:
        """Return numbers and words that the node says of itself before the first round."""
        return {}, {}

    def query(self, call: Call) -> dict[str, Any] | None:
        """Return the answer to a question of the feature, in place of an introduction; None to others."""
        return None

    def begin(self, call: Call) -> None:
        """Act before local training; raise ``FedShiftError`` to refuse it."""

    def before_training(self, client: Client, request: Mapping[str, Any]) -> Metrics:
        """Return numbers of the weights as they came."""
        return {}

    def after_training(self, client: Client, request: Mapping[str, Any]) -> Metrics:
        """Return numbers of the model as local training left it."""
        return {}

    def answer(self, client: Client, parameters: list[NDArray[Any]], request: Mapping[str, Any]) -> Answer | None:
        """Return sums over images in place of scores; None where the message asks for scores."""
        return None

    def mixes_images(self, request: Mapping[str, Any]) -> bool:
        """Tell whether test images are to be scored in an order that mixes their classes."""
        return False

    def around_scores(self, client: Client, request: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Return what holds while the weights are scored."""
        return nullcontext()

    def around_tests(self, client: Client, request: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Return what holds while test images are scored."""
        return nullcontext()

    def record(self, domain: str, scores: Scores) -> dict[str, Arrays]:
        """Return arrays for records of the feature, by record, from the scores of a domain."""
        return {}

    def more_records(self, client: Client, request: Mapping[str, Any], *, mixed: bool) -> dict[str, Arrays]:
        """Return further arrays, by record, of passes over test images of its own.

        Args:
            client: As it scored the test images.
            request: What it was asked.
            mixed: Test images are scored in an order that mixes their classes.
        """
        return {}

    def on_scores(self, client: Client, request: Mapping[str, Any]) -> Metrics:
        """Return further numbers of the weights as they are scored."""
        return {}

    def after_scores(self, client: Client, request: Mapping[str, Any]) -> Metrics:
        """Return numbers of other scores."""
        return {}

    def protect(self, config: RunSettings, sent: Arrays, reply: Reply) -> Reply:
        """Return what may leave the node after local training; raise ``FedShiftError`` if nothing may."""
        return reply

    def seal(self, call: Call, sent: Arrays, reply: Reply) -> Reply:
        """Return what leaves the node of what :meth:`protect` of all features let out."""
        return reply

    def seal_answer(self, call: Call, sent: Arrays, answer: Answer) -> Answer:
        """Return what leaves the node of an answer in place of scores; ``sent`` are the weights it is about."""
        return answer

    def finish(self, client: Client, started: float) -> Metrics:
        """Return numbers of the whole call, which began at this time of ``time.perf_counter``."""
        return {}
