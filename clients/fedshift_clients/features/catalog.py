"""All features of a run on the node, in the server's order. FedShift's own come first, then those of other packages."""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from numpy.typing import NDArray

from fedshift_clients.features.base import About, Answer, Call, Client, Metrics, NodeFeature, Reply, Request
from fedshift_clients.training.eval_slices import Scores
from fedshift_core import extensions
from fedshift_core.arrays import Arrays
from fedshift_core.disclosure import IMAGE, Word
from fedshift_core.errors import FedShiftError
from fedshift_core.features import Feature, Key, of_run
from fedshift_core.frozen import Section
from fedshift_core.registry import imported
from fedshift_core.run_settings import RunSettings


class Features:
    """The features of a run on the node."""

    def __init__(self, entries: tuple[Section, ...] = ()) -> None:
        declared = of_run(entries)
        self.declared: list[Feature] = [feature for feature, _ in declared]
        self.all: list[NodeFeature] = [
            imported(feature.node)(feature.name, params) for feature, params in declared if feature.node
        ]
        self._by_name = {feature.name: feature for feature in self.all}
        self._declared = {feature.name: feature for feature in self.declared}
        self._keys: dict[str, dict[str, tuple[Key, NodeFeature]]] = {}  # by kind of message
        self._answering = [feature for feature in self.all if type(feature).query is not NodeFeature.query]

    def attach(self, client: Client, config: RunSettings) -> None:
        """Begin to work with a client that has just been made."""
        for feature in self.all:
            feature.attach(client, config)

    def keys(self, kind: str) -> dict[str, tuple[Key, NodeFeature]]:
        """Return what a message of a kind may have in its record ``config``, with the feature whose it is."""
        if kind not in self._keys:
            self._keys[kind] = {
                key.name: (key, self._by_name[feature.name])
                for feature in self.declared
                if feature.name in self._by_name
                for key in {"train": feature.train, "evaluate": feature.evaluate, "query": feature.query}.get(kind, ())
            }
        return self._keys[kind]

    def missing(self, request: Request) -> str:
        """Return what a message that asks for scores lacks; empty for nothing."""
        return next((why for feature in self.all if (why := feature.missing(request))), "")

    def images(self, kind: str) -> list[Key]:
        """Return what features declare to be numbers of the node's own images in a kind of message."""
        return [key for feature in self.declared for key in getattr(feature, kind) if key.images]

    def word(self, record: str) -> Word:
        """Return what the arrays of a record tell of images; the strictest where its feature says nothing."""
        named = ((key, feature) for feature in self.declared for key in feature.records if key.name == record)
        return next((word for key, feature in named if (word := key.word or feature.word)), IMAGE)

    def records(self) -> set[str]:
        """Return the names of the records of features."""
        return {key.name for feature in self.declared for key in feature.records}

    def sent_records(self, request: Request) -> set[str]:
        """Return the names of the records that a message may have with what it asks for."""
        return {name for feature in self.all for name in feature.sent_records(request)}

    def receive(self, client: Client, records: Mapping[str, Arrays]) -> None:
        """Take in the records of a message."""
        for feature in self.all:
            feature.receive(client, records)

    def introduce(self, about: About) -> tuple[Metrics, dict[str, str]]:
        """Return numbers and words that the node says of itself."""
        numbers: Metrics = {}
        words: dict[str, str] = {}
        for feature in self.all:
            more, said = feature.introduce(about)
            self._check(feature, {**more, **said}, "introduction")
            numbers, words = numbers | more, words | said
        return numbers, words

    def before_training(self, client: Client, request: Mapping[str, Any]) -> Metrics:
        """Return numbers of the weights as they came."""
        return self._sent(lambda feature: feature.before_training(client, request), "train_reply")

    def after_training(self, client: Client, request: Mapping[str, Any]) -> Metrics:
        """Return numbers of the model as local training left it."""
        return self._sent(lambda feature: feature.after_training(client, request), "train_reply")

    def answer(self, client: Client, parameters: list[NDArray[Any]], request: Mapping[str, Any]) -> Answer | None:
        """Return sums over images in place of scores, if a feature answers the message so."""
        answers = (feature.answer(client, parameters, request) for feature in self.all)
        return next((answer for answer in answers if answer is not None), None)

    def mixes_images(self, request: Mapping[str, Any]) -> bool:
        """Tell whether test images are to be scored in a mixed order."""
        return any(feature.mixes_images(request) for feature in self.all)

    @contextmanager
    def around_scores(self, client: Client, request: Mapping[str, Any]) -> Iterator[None]:
        """Hold what features need while the weights are scored."""
        with ExitStack() as stack:
            for feature in self.all:
                stack.enter_context(feature.around_scores(client, request))
            yield

    @contextmanager
    def around_tests(self, client: Client, request: Mapping[str, Any]) -> Iterator[None]:
        """Hold what features need while test images are scored."""
        with ExitStack() as stack:
            for feature in self.all:
                stack.enter_context(feature.around_tests(client, request))
            yield

    def record(self, domain: str, scores: Scores) -> dict[str, Arrays]:
        """Return arrays by record from the scores of a domain."""
        return self._sent(lambda feature: feature.record(domain, scores), "records")

    def more_records(self, client: Client, request: Mapping[str, Any], *, mixed: bool) -> dict[str, Arrays]:
        """Return further arrays by record, of further passes over test images."""
        return self._sent(lambda feature: feature.more_records(client, request, mixed=mixed), "records")

    def on_scores(self, client: Client, request: Mapping[str, Any]) -> Metrics:
        """Return further numbers of the weights as they are scored."""
        return self._sent(lambda feature: feature.on_scores(client, request), "evaluate_reply")

    def after_scores(self, client: Client, request: Mapping[str, Any]) -> Metrics:
        """Return numbers of other scores."""
        return self._sent(lambda feature: feature.after_scores(client, request), "evaluate_reply")

    def protect(self, config: RunSettings, sent: Arrays, reply: Reply) -> Reply:
        """Return what may leave the node after local training."""
        for feature in self.all:
            reply = feature.protect(config, sent, reply)
        return reply

    def query(self, calls: Callable[[str], Call]) -> dict[str, Any] | None:
        """Return the answer to a question of a feature; None where the message asks what the node is.

        Args:
            calls: Returns the message as a feature of this name sees it.
        """
        for feature in self._answering:
            if (answer := feature.query(calls(feature.name))) is not None:
                self._check(feature, answer, "query_reply")
                return answer
        return None

    def begin(self, calls: Callable[[str], Call]) -> None:
        """Let all features act before local training."""
        for feature in self.all:
            feature.begin(calls(feature.name))

    def seal(self, calls: Callable[[str], Call], sent: Arrays, reply: Reply) -> Reply:
        """Return what leaves the node after local training."""
        for feature in self.all:
            reply = feature.seal(calls(feature.name), sent, reply)
        return reply

    def seal_answer(self, calls: Callable[[str], Call], sent: Arrays, answer: Answer) -> Answer:
        """Return what leaves the node of an answer in place of scores."""
        for feature in self.all:
            answer = feature.seal_answer(calls(feature.name), sent, answer)
        return answer

    def finish(self, client: Client, started: float) -> Metrics:
        """Return numbers of the whole call."""
        return self._sent(lambda feature: feature.finish(client, started), "train_reply", "evaluate_reply")

    def _sent(self, add: Callable[[NodeFeature], dict[str, Any]], *kinds: str) -> dict[str, Any]:
        """Return what all features add to a reply; raise ``FedShiftError`` where one does not declare a name."""
        merged: dict[str, Any] = {}
        for feature in self.all:
            more = add(feature)
            self._check(feature, more, *kinds)
            merged |= more
        return merged

    def _check(self, feature: NodeFeature, names: Mapping[str, Any], *kinds: str) -> None:
        declared = [key for kind in kinds for key in getattr(self._declared[feature.name], kind)]
        for name in names:
            if not any(key.fits(name) for key in declared):
                raise FedShiftError(f"the feature {feature.name} would send {name!r}, which it does not declare")


@extensions.cleared_on_change
@functools.lru_cache(maxsize=8)
def of(entries: tuple[Section, ...] = ()) -> Features:
    """Return the features of a run, whose configuration has these entries in its section ``features``."""
    return Features(entries)
