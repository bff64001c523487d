"""The one client, behind Flower's NumPyClient; by itself it is FedAvg's.

FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, https://arxiv.org/abs/1602.05629, algorithm 1 (ClientUpdate).

A method subclasses :class:`DomainClient` and overrides a few hooks: ``build_model``, ``private`` (what never
travels), ``received`` (after the weights came), ``phases`` (local training in parts), ``start_round`` and
``start_epoch``, ``loss`` (named terms), ``finish_round`` (what it contributes), ``predict`` and ``score_test``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from numpy.typing import NDArray

from fedshift_clients.adapt.base import Adaptation
from fedshift_clients.features import Call, Features, Metrics, Next, Reply
from fedshift_clients.losses.imbalance import ClassLoss
from fedshift_clients.models import networks
from fedshift_clients.models.networks import Blueprint, SplitModel, batchnorm_names
from fedshift_clients.modules.base import AllModules
from fedshift_clients.training import own_code
from fedshift_clients.training.eval_slices import Scores, asked_images
from fedshift_clients.training.inputs import ClientSetup, RoundInputs
from fedshift_clients.training.model_cache import Workbench
from fedshift_clients.training.phases import EVALUATION, MESSAGES, PROTOTYPES, Phase
from fedshift_clients.training.scorer import LocalScorer
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.params import P
from fedshift_core.wire.image_styles import ImageStyles
from fedshift_core.wire.names import SERVER_ROUND
from fedshift_core.wire.scores import DomainScore
from fedshift_datasets.base import ImageSet

__all__ = ["ClientSetup", "DomainClient", "Phase", "RoundInputs", "Scores"]


class DomainClient(LocalScorer[P]):
    """Trains and evaluates on the images of one node.

    Attributes:
        features: What composes with the method in this run.
        class_names: Names of the classes, for the node's log; empty where nobody said.
    """

    #: Whether nodes may have different networks (``model.per_node``): then no weights travel.
    heterogeneous: ClassVar[bool] = False
    #: Whether their features must then be equally wide, because prototypes travel.
    equal_features: ClassVar[bool] = True
    #: Whether the score of a test image depends on no other image, so that nodes may share out a test set.
    scores_images_alone: ClassVar[bool] = True
    #: Whether it needs the public set (``dataset.public``), which is then ``self.public_set()``.
    uses_public: ClassVar[bool] = False
    #: Whether it needs means and variances of all nodes' images (``statistics.share=nodes``), which are then
    #: ``self.federation_images``.
    uses_statistics: ClassVar[bool] = False
    #: Means and deviations of single images of all nodes (``statistics.image_share``); None elsewhere.
    image_styles: ImageStyles | None = None
    #: Whether a node's memory holds a copy of the shared weights, which decides the room that it takes on the disk.
    remembers_shared: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Refuse a method that would get around what features do to a node's work.

        Raises:
            ConfigError: With the method of the class that is no hook.
        """
        super().__init_subclass__()
        for name in ("fit", "evaluate", "train", "scores"):
            if name in vars(cls):
                raise ConfigError(
                    f"{cls.__name__}.{name}: what goes on around a method is no hook; allowed are phases, loss, "
                    "to_send, finish_round, score_test and the others of docs/guide/own-method.md"
                )

    def __init__(
        self,
        model: SplitModel,
        setup: ClientSetup,
        params: P,
        train_set: ImageSet,
        test_set: Callable[[str], ImageSet],
        own_sets: Mapping[str, ImageSet] | None = None,
        modules: AllModules | None = None,
        adaptation: Adaptation | None = None,
        bench: Workbench | None = None,
        public_set: Callable[[], ImageSet] | None = None,
        features: Features | None = None,
    ) -> None:
        """Make a client; ``bench``, which holds the model, is that of the client before in this process."""
        modules = modules or AllModules()
        private = self.kept_names(model, setup.model, params, modules)
        super().__init__(model, setup, params, train_set, private, bench, public_set)
        self.test_set, self.own_sets, self._adaptation = test_set, own_sets or {}, adaptation
        self._modules = modules
        modules.end_round(model)  # the model may be another node's of a moment ago
        self.class_loss = ClassLoss(None, setup.train.focal_gamma if setup.train.loss == "focal" else 0.0)
        self._contribution: Arrays = {}
        self.features = features or Features()
        self.class_names: tuple[str, ...] = ()

    # --- hooks of a method -------------------------------------------------------------------------

    @classmethod
    def check_run(cls, params: P, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Raise ``ConfigError`` if the method cannot run so; called before anything starts."""

    @classmethod
    def needs_image_styles(cls, params: P) -> bool:
        """Tell whether it needs means and deviations of single images of other nodes, ``self.image_styles``."""
        return False

    @classmethod
    def trains_encoder_alone(cls, params: P) -> bool:
        """Tell whether some of the local training changes the encoder alone, of which something must then train."""
        return False

    @classmethod
    def build_model(cls, plan: Blueprint, params: P) -> SplitModel:
        """Build the model; what a method adds must leave the initial weights of the network as they are."""
        config = plan.config
        return networks.build(config.name, plan.num_classes, plan.seed, plan.size, config.head, config.projection)

    @classmethod
    def private(cls, model: SplitModel, config: ModelConfig, params: P) -> frozenset[str]:
        """Return the state-dict names that never travel; by default BatchNorm if ``bn = local``."""
        return batchnorm_names(model) if config.bn == "local" else frozenset()

    @classmethod
    def personal(cls, model: SplitModel, config: ModelConfig, params: P) -> bool:
        """Tell whether each node is scored with a model of its own; by default if parts are private."""
        return bool(cls.private(model, config, params))

    @classmethod
    def scores_as_sent(cls, params: P) -> bool:
        """Tell whether a score is that of the weights themselves, with the private parts, and nothing else.

        A method with a ``score_test`` of its own says so itself: else its model cannot be saved as the one that was
        scored.
        """
        return cls.score_test is DomainClient.score_test

    @classmethod
    def is_per_image(cls) -> bool:
        """Tell whether gradients of single images are all that training takes of a node's images.

        A class that overrides a hook of training says so by overriding losses of single images or of weights with it.
        """
        return own_code.is_per_image(cls, DomainClient)

    @classmethod
    def can_weigh_classes(cls) -> bool:
        """Tell whether losses that classify the node's images weigh classes as the run says, as far as code shows it.

        They are then made of :meth:`cross_entropy`, on batches of the node's images.
        """
        return own_code.weighs_classes(cls, DomainClient)

    def received(self) -> None:
        """Act on the weights that have just been put into the model, before training and before scoring alike."""

    def to_send(self, sent: Arrays, trained: Arrays) -> Arrays:
        """Return the shared weights that go to the server after local training; by default as it left them.

        Args:
            sent: The shared weights that came, by name; in a run with ``model.freeze`` those that train.
            trained: They after local training.
        """
        return trained

    def finish_round(self, server_round: int) -> Arrays:
        """Return what the node contributes besides weights, after local training."""
        return {}

    @classmethod
    def kept_names(cls, model: SplitModel, config: ModelConfig, params: P, modules: AllModules) -> frozenset[str]:
        """Return the state-dict names that never travel: the method's and those of the model's modules."""
        return cls.private(model, config, params) | modules.private(model)

    # --- Flower's contract -------------------------------------------------------------------------

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Train for the configured local epochs from the given shared weights.

        Args:
            parameters: Shared arrays in the order of :attr:`shared_names`.
            config: Holds ``server-round`` and what features ask for.

        Returns:
            The shared arrays after training, the number of training images, and the mean loss terms with the numbers of
            features.

        Raises:
            FedShiftError: If weights or layers of the model were replaced in place of being changed.
        """
        reply = self.train(self._call(parameters, config))
        return list(reply.weights.values()), reply.images, reply.metrics

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Score the given weights on the test images of ``config["domains"]``, or on parts of them.

        Returns:
            Mean cross-entropy, number of test images, and correct, count and summed loss of each domain with the
            numbers of features.
        """
        reply = self.scores(self._call(parameters, config))
        loss = sum((scores.loss_sum for scores in reply.scores.values()), 0.0)
        return loss / max(reply.images, 1), reply.images, reply.metrics

    def _call(self, parameters: list[NDArray[Any]], config: Mapping[str, Any]) -> Call:
        sent = dict(zip(self.shared_names, parameters, strict=True))
        return Call.to(self, sent, options=config, server_round=int(config.get(SERVER_ROUND, 0)))

    # --- a node's part of a round --------------------------------------------------------------------

    def train(self, call: Call) -> Reply:
        """Return what leaves the node of local training: the run's features around the method's own."""
        self.server_round = call.server_round
        with self.own_draws("around-training", call.server_round):
            return self.features.run("on_train", call, self._trained)

    def scores(self, call: Call) -> Reply:
        """Return what leaves the node of scores, or of what a feature answers in their place."""
        self.server_round = call.server_round
        with self.own_draws("scores", call.server_round):
            return self.features.run("on_scores", replace(call, mixed=self.mixes_tests), self._scored)

    def with_weights(self, call: Call, rest: Next) -> Reply:
        """Take the weights of a call into the model, and return what the rest of the call makes of them."""
        self.take([call.sent[name] for name in self.shared_names])
        reply = rest(call)
        self.passed(EVALUATION)
        self._bench.check(self.model)
        return reply

    def _trained(self, call: Call) -> Reply:
        phases = self._prepare_round(call.server_round)
        self.passed(PROTOTYPES)
        with self.own_draws("dropout", call.server_round):
            terms = self._train(call.server_round, phases)
        self.trained_here = True
        self._contribution = self.finish_round(call.server_round)
        self.passed(PROTOTYPES)
        self._keep_private()
        weights = self.to_send(dict(call.sent), dict(zip(self.shared_names, self._shared(), strict=True)))
        return Reply(len(self.train_set), dict(terms), weights, self._contribution)

    def _scored(self, call: Call) -> Reply:
        metrics: Metrics = {}
        scores: dict[str, Scores] = {}
        images = 0
        with self.observed_by(call.observers):
            for domain, test in self.tests(call.options, mixed=call.mixed):
                scores[domain] = own = self.score_test(test)
                images += len(test)
                metrics |= DomainScore(own.correct, len(test), own.loss_sum, own.others).to_numbers(domain)
        return Reply(images, metrics, scores=scores)

    def tests(self, request: Mapping[str, Any], *, mixed: bool = False) -> Iterator[tuple[str, ImageSet]]:
        """Yield each domain that a message names, with its test images to score (:func:`asked_images`)."""
        for domain, images in asked_images(self.test_set, request, self.setup.order, mixed=mixed):
            with self.of_domain(domain):
                yield domain, images

    def take(self, parameters: list[NDArray[Any]]) -> None:
        """Put what the server sent into the model and let the method act on it."""
        self.trained_here = False
        self._load(parameters)
        self.passed(MESSAGES)
        self.received()
        self.other_weights()

    def contribution(self) -> Arrays:
        """Return what the last ``fit`` contributes besides weights."""
        return self._contribution
