"""All features of a run on the server, as the strategy passes them. FedShift's own come first, then other packages'."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from flwr.app import ArrayRecord, Message

from fedshift_core.arrays import Arrays
from fedshift_core.errors import FederationError
from fedshift_core.features import FEATURES, of_run
from fedshift_core.registry import imported
from fedshift_strategies.features.base import Exchange, Means, Question, ServerFeature, Session, Training
from fedshift_strategies.federation.checks import Known
from fedshift_strategies.federation.context import RoundResult, RunContext
from fedshift_strategies.federation.evaluation import Evaluation
from fedshift_strategies.federation.nodes import Agreement, Node
from fedshift_strategies.federation.update_norms import SentWeights
from fedshift_strategies.federation.updates import Sifted, Update

Made = TypeVar("Made", bound=ServerFeature)


class Features:
    """The features of a run, in a fixed order."""

    def __init__(self, run: RunContext) -> None:
        self.all: list[ServerFeature] = [
            imported(feature.server)(feature.name, run, params)
            for feature, params in of_run(run.config.features)
            if feature.server
        ]

    def __iter__(self) -> Iterator[ServerFeature]:
        return iter(self.all)

    def of(self, kind: type[Made]) -> Made:
        """Return the feature of a class."""
        return next(feature for feature in self.all if isinstance(feature, kind))

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

    @property
    def noise(self) -> float:
        """Standard deviation of the noise that honest nodes add to each weight."""
        return max(feature.noise() for feature in self.all)

    def each(self, call: Callable[[ServerFeature], None]) -> None:
        """Call something with each feature."""
        for feature in self.all:
            call(feature)

    def check_number(self, nodes: int) -> None:
        """Raise ``FederationError`` if a feature cannot do its work with so many nodes in a round."""
        self.each(lambda feature: feature.check_number(nodes))

    def check_nodes(self, nodes: Sequence[Node]) -> None:
        """Raise ``FederationError`` if a feature cannot do its work with the nodes of this run."""
        self.each(lambda feature: feature.check_nodes(nodes))

    def passed(self, phase: str) -> None:
        """Note that a phase of the round is over."""
        self.each(lambda feature: feature.passed(phase))

    def observe(self, node: Node, metrics: Mapping[str, Any]) -> None:
        """Take in the numbers of any reply that is used."""
        self.each(lambda feature: feature.observe(node, metrics))

    def before_training(self, nodes: list[Node], exchange: Exchange) -> list[Node]:
        """Let features ask nodes something before they train, and return those that train."""
        for feature in self.all:
            nodes = feature.before_training(nodes, exchange)
        return nodes

    def gather(
        self, asked: Mapping[int, Node], replies: list[Message], exchange: Exchange, sent: SentWeights
    ) -> Sifted | None:
        """Return what the replies of a round come to by the first feature that has a way of its own."""
        for feature in self.all:
            if (sifted := feature.gather(asked, replies, exchange, sent)) is not None:
                return sifted
        return None

    def train_options(self, node: Node, training: Training) -> dict[str, Any]:
        """Return what all features add to a message to train."""
        return _union(feature.train_options(node, training) for feature in self.all)

    def train_bounds(self, node: Node, training: Training) -> Known:
        """Return what numbers a reply to it may hold for features."""
        return _union(feature.train_bounds(node, training) for feature in self.all)

    def read_train(self, metrics: Mapping[str, Any]) -> None:
        """Raise ``Refused`` if numbers of a reply do not go together."""
        self.each(lambda feature: feature.read_train(metrics))

    def weights(self, updates: list[Update], training: Training) -> tuple[list[float], str] | None:
        """Return one weight per update and the key of the configuration that says so; None where none does."""
        for feature in self.all:
            if (weights := feature.weights(updates, training)) is not None:
                return weights, FEATURES[feature.name].option
        return None

    def merge(self, updates: list[Update], weights: list[float], training: Training) -> ArrayRecord | None:
        """Return the next shared weights as the first feature with a rule of its own merges them."""
        for feature in self.all:
            if (merged := feature.merge(updates, weights, training)) is not None:
                return merged
        return None

    def step(self, merged: ArrayRecord, training: Training) -> ArrayRecord:
        """Return the next shared weights after what features do with the average."""
        for feature in self.all:
            merged = feature.step(merged, training)
        return merged

    def before_scores(self, session: Session, result: RoundResult) -> None:
        """Ask nodes what must be known before models are scored."""
        self.each(lambda feature: feature.before_scores(session, result))

    def hidden_means(self, question: Question, session: Session) -> Means | None:
        """Return what came of a question by the first feature that hides its single answers."""
        for feature in self.all:
            if (means := feature.hidden_means(question, session)) is not None:
                return means
        return None

    def score_options(self, evaluation: Evaluation) -> dict[str, Any]:
        """Return what all features add to a message to evaluate."""
        return _union(feature.score_options(evaluation) for feature in self.all)

    def sent_records(self, options: Mapping[str, Any]) -> dict[str, Arrays]:
        """Return the records of arrays that go with a message that has these options."""
        return _union(feature.sent_records(options) for feature in self.all)

    def scored(self, evaluation: Evaluation, result: RoundResult) -> None:
        """Write into the round's result what came of the scores."""
        self.each(lambda feature: feature.scored(evaluation, result))

    def finish_round(self, result: RoundResult) -> None:
        """Write into the round's result what is known only at its end."""
        self.each(lambda feature: feature.finish_round(result))


def _union(parts: Any) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for part in parts:
        merged |= part
    return merged
