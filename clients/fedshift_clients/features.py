"""Features on a node: the six hooks of a node half, and the chain of those that a run turns on.

A feature is middleware: ``next(call)`` is the rest of a node's work on a message, so before, after and around it are
ordinary code. Only the features that the run's configuration turns on are built.
"""

import functools
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedshift_clients.calls import About, Call, Metrics, Question, Reply, Request
from fedshift_core import extensions
from fedshift_core.arrays import Arrays
from fedshift_core.disclosure import IMAGE, Word
from fedshift_core.errors import FedShiftError
from fedshift_core.features import CORE, Feature, Key, of_run, on_in
from fedshift_core.params import Params
from fedshift_core.registry import imported
from fedshift_core.run_settings import RunSettings
from fedshift_core.yaml_files import written

if TYPE_CHECKING:
    from fedshift_clients.base import DomainClient

__all__ = ["About", "Call", "Features", "Metrics", "Next", "NodeFeature", "Place", "Question", "Reply", "Request", "of"]

Hook = Literal["on_train", "on_scores"]


class Place(IntEnum):
    """The place of a feature around a node's work, from the network inwards to the model.

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


Next = Callable[[Call], Reply]
#: Rounds a figure of images: takes its name, its value and the number of images behind it.
Rate = Callable[[str, float, int], float]


class NodeFeature:
    """The node's side of a feature. It keeps nothing between messages but in ``Call.state``.

    Attributes:
        name: The feature's name, as ``fedshift_core.features`` has it.
        params: Its parameters.
    """

    place: ClassVar[Place] = Place.NUMBERS
    #: Records that a message may bring; ``refuse`` says when.
    takes: ClassVar[tuple[str, ...]] = ()
    #: Record of figures that a guarded node lets out in steps alone (``in_steps``); empty: none.
    record: ClassVar[str] = ""

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

    def in_steps(self, figures: Arrays, rates: Callable[[str], Rate], least: int) -> Arrays:
        """Return the figures of its record as they leave a guarded node.

        Args:
            figures: As the feature has them.
            rates: Returns what rounds figures of a domain.
            least: Least number of images, or of patients, behind a number.
        """
        raise NotImplementedError

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
        reply = call.client.with_weights(call, next)
        call.keep()
        return reply

    def on_scores(self, call: Call, next: Next) -> Reply:
        return call.client.with_weights(call, next)


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

    @property
    def figures(self) -> dict[str, NodeFeature]:
        """By record of figures that leave a guarded node in steps, whose they are."""
        return {half.record: half for _, half in self._all if half.record}

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
