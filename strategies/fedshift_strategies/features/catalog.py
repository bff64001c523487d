"""The features that a run has on, as the strategy passes them: the first is the outermost."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from flwr.app import ArrayRecord, Message

from fedshift_core.arrays import Arrays
from fedshift_core.errors import FederationError
from fedshift_core.features import FEATURES, on_in
from fedshift_core.registry import imported
from fedshift_strategies.features.base import (
    Gather,
    Merge,
    Question,
    Scoring,
    ServerFeature,
    Steps,
    Training,
    Weigh,
)
from fedshift_strategies.federation.checks import Known
from fedshift_strategies.federation.context import RunContext
from fedshift_strategies.federation.evaluation import Asked
from fedshift_strategies.federation.nodes import Agreement, Node
from fedshift_strategies.federation.update_norms import SentWeights
from fedshift_strategies.federation.updates import Sifted, Update
from fedshift_strategies.weighting import check_weights

Made = TypeVar("Made", bound=ServerFeature)


class Around:
    """Features around a part of a round: each goes to its ``yield`` at first, and on from it when the part is over.

    Attributes:
        asked: What each adds to the messages, by its name.
    """

    def __init__(self, steps_of: Iterable[tuple[str, Steps]] = ()) -> None:
        self.asked: dict[str, Asked] = {}
        self._steps: list[Steps] = []
        for name, steps in steps_of:
            self.asked[name] = next(steps, None) or Asked()
            self._steps.insert(0, steps)

    def options(self, node: Node) -> dict[str, Any]:
        """Return what features add to the record ``config`` of a message."""
        return _union(asked.options(node) for asked in self.asked.values() if asked.when())

    def records(self) -> dict[str, Arrays]:
        """Return the arrays that go with it, by record."""
        return _union(asked.records for asked in self.asked.values() if asked.when())

    def bounds(self, node: Node) -> Known:
        """Return what numbers a reply may hold for features."""
        return _union(asked.bounds(node) for asked in self.asked.values())

    def check(self, metrics: Mapping[str, Any]) -> None:
        """Raise ``Refused`` if numbers of a reply do not go together."""
        for asked in self.asked.values():
            asked.check(metrics)

    def finish(self) -> None:
        """Let features go on, the innermost first."""
        steps, self._steps = self._steps, []
        for each in steps:
            next(each, None)


class Features:
    """The features of a run, in a fixed order."""

    def __init__(self, run: RunContext) -> None:
        self.all: list[ServerFeature] = [
            imported(feature.server)(feature.name, run, params)
            for feature, params in on_in(run.config)
            if feature.server
        ]

    def __iter__(self) -> Iterator[ServerFeature]:
        return iter(self.all)

    def of(self, kind: type[Made]) -> Made | None:
        """Return the feature of a class; None where the run has it off."""
        return next((feature for feature in self.all if isinstance(feature, kind)), None)

    @property
    def agreement(self) -> Agreement | None:
        """The feature that says what all nodes must have alike; None where there is none."""
        return next((feature for feature in self.all if isinstance(feature, Agreement)), None)

    @property
    def state(self) -> Arrays:
        """What all features keep from round to round.

        Raises:
            FederationError: If a feature keeps an array that a resumed run would not give it back.
        """
        kept: Arrays = {}
        for feature in self.all:
            for name, array in feature.state.items():
                if [each for each in self.all if name.startswith(each.prefixes)] != [feature]:
                    raise FederationError(
                        f"the feature {feature.name} keeps {name!r} in its state; expected a name that begins with one "
                        f"of its prefixes {feature.prefixes!r}, and with that of no other feature"
                    )
                kept[name] = array
        return kept

    @state.setter
    def state(self, arrays: Arrays) -> None:
        for feature in self.all:
            feature.state = {name: array for name, array in arrays.items() if name.startswith(feature.prefixes)}

    def describe(self, nodes: Sequence[Node]) -> list[str]:
        """Return lines on what features do in this run; raise ``FederationError`` if one cannot with these nodes."""
        return [line for feature in self.all for line in feature.describe(nodes)]

    def gather(self, replies: list[Message], training: Training, sent: SentWeights, last: Gather) -> Sifted:
        """Return what the replies of a round come to; ``last`` reads each of them."""
        for feature in reversed(self.all):
            last = partial(feature.gather, training=training, sent=sent, next=last)
        return last(replies)

    def weights(self, updates: list[Update], training: Training, last: Weigh) -> list[float]:
        """Return one weight per update; ``last`` are those of the run's rule, or of the method."""
        for feature in reversed(self.all):
            last = partial(_weighed, feature, training=training, next=last)
        return last(updates)

    def merge(self, updates: list[Update], weights: list[float], training: Training, last: Merge) -> ArrayRecord:
        """Return the next shared weights; ``last`` is the method's rule."""
        for feature in reversed(self.all):
            last = partial(feature.merge, training=training, next=last)
        return last(updates, weights)

    def means(self, question: Question, scoring: Scoring) -> Arrays | None:
        """Return what came of a question by the first feature that hides its single answers."""
        return next((found for each in self.all if (found := each.means(question, scoring)) is not None), None)


def _weighed(feature: ServerFeature, updates: list[Update], training: Training, next: Weigh) -> list[float]:
    """Return the weights of a feature, checked under the key that turns it on."""
    if type(feature).weights is ServerFeature.weights:
        return next(updates)
    return check_weights(feature.weights(updates, training, next), len(updates), FEATURES[feature.name].option)


def _union(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for part in parts for key, value in part.items()}
