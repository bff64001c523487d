"""The one client, behind Flower's NumPyClient; by itself it is FedAvg's.

FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, https://arxiv.org/abs/1602.05629, algorithm 1 (ClientUpdate).

A method subclasses :class:`DomainClient` and overrides a few hooks: ``build_model``, ``private`` (what never
travels), ``received`` (after the weights came), ``phases`` (local training in parts), ``start_round`` and
``start_epoch``, ``loss`` (named terms), ``finish_round`` (what it contributes), ``predict`` and ``score_test``.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedshift_clients.adapt.base import Adaptation
from fedshift_clients.features import catalog
from fedshift_clients.features.catalog import Features
from fedshift_clients.models import networks
from fedshift_clients.models.networks import Blueprint, SplitModel, batchnorm_names
from fedshift_clients.modules.base import AllModules
from fedshift_clients.training.eval_slices import Scores, asked_images, warn_if_by_class
from fedshift_clients.training.inputs import ClientSetup, RoundInputs
from fedshift_clients.training.model_cache import Workbench
from fedshift_clients.training.own_code import weighs_classes
from fedshift_clients.training.phases import EVALUATION, MESSAGES, PROTOTYPES, Phase
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_clients.training.trainer import LocalTrainer
from fedshift_core.arrays import Arrays
from fedshift_core.params import P
from fedshift_core.wire.image_styles import ImageStyles
from fedshift_core.wire.names import SERVER_ROUND
from fedshift_core.wire.scores import DomainScore
from fedshift_datasets.base import ImageSet

__all__ = ["ClientSetup", "DomainClient", "Phase", "RoundInputs", "Scores"]


class DomainClient(LocalTrainer[P]):
    """Trains and evaluates on the images of one node.

    Attributes:
        own_sets: Labelled images of the node that it does not train on, by split; those that there are.
        features: What composes with the method in this run.
        records: Arrays of features from the last ``evaluate``, by record.
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
        super().__init__(model, setup, params, train_set, private, modules, bench, public_set)
        self.test_set = test_set
        self.own_sets: Mapping[str, ImageSet] = own_sets or {}
        self._adaptation = adaptation
        self._contribution: Arrays = {}
        self.features = features or catalog.of()
        self.records: dict[str, Arrays] = {}
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
        for each in cls.__mro__[: cls.__mro__.index(DomainClient)]:
            if vars(each).keys() & {"image_losses", "weight_losses", "own_terms_of_each"}:
                return True
            if vars(each).keys() & _TRAINING_HOOKS:
                return False
        return True

    @classmethod
    def can_weigh_classes(cls) -> bool:
        """Tell whether losses that classify the node's images weigh classes as the run says, as far as code shows it.

        They are then made of :meth:`cross_entropy`, on batches of the node's images.
        """
        own = any(
            getattr(cls, hook) is not getattr(DomainClient, hook) for hook in ("fit", "terms_of", "training_batches")
        )
        return not own and weighs_classes(cls, DomainClient, _LOSSES)

    def received(self) -> None:
        """Act on the weights that have just been put into the model, before training and before scoring alike."""

    def finish_round(self, server_round: int) -> Arrays:
        """Return what the node contributes besides weights, after local training."""
        return {}

    def other_statistics(self) -> None:
        """Forget what was worked out of the received weights: they are scored with other statistics of BatchNorm."""

    @property
    def mixes_tests(self) -> bool:
        """Whether test images come in an order that mixes their classes, as a score depends on those before; no."""
        return False

    def score_test(self, test: ImageSet) -> Scores:
        """Score a test set, adapted to it if the run says so. The model must be afterwards what it was before."""
        adaptation = self._adaptation
        self.start_pass()
        if adaptation is None or (self._trained_here and not adaptation.after_training):
            return self.scored(test)
        if adaptation.goes_by_order:
            warn_if_by_class(test.y)
        before, _ = self.score(test)
        total, times = Scores(0, 0.0), np.zeros(len(test), np.int64)
        dropout = self.own_draws("dropout-adapt", self.server_round)
        with self.kept_weights(), dropout, self._predicting_by(adaptation), self._labels_withheld():
            for places in adaptation.adapt(self, test.x):
                if not times.any():
                    self.start_pass()  # with the model as it is adapted
                complete = len(places) == len(test) and bool((places[:-1] < places[1:]).all())
                part = test if complete else test.select(places)
                total += self.scored(part)
                np.add.at(times, places, 1)
        if not (times == 1).all():
            raise RuntimeError(f"{type(adaptation).__name__} must have each test image scored once")
        return replace(total, others={adaptation.before: before})

    @contextmanager
    def _labels_withheld(self) -> Iterator[None]:
        """Take from the client all that has labels of images that are scored, while code of an adaptation runs."""
        held = self.test_set, self.own_sets
        self.test_set, self.own_sets = _no_labels, {}
        try:
            yield
        finally:
            self.test_set, self.own_sets = held

    def other_weights(self) -> None:
        """Tell the adaptation, if there is one, that the model is another one."""
        if self._adaptation is not None:
            with self._labels_withheld():
                self._adaptation.received(self)

    @contextmanager
    def _predicting_by(self, adaptation: Adaptation) -> Iterator[None]:
        """Let the adaptation classify, if it has a way of its own."""
        if type(adaptation).predict is Adaptation.predict:
            yield
            return
        self._predictor = lambda x: adaptation.predict(self, x)
        try:
            yield
        finally:
            self._predictor = None

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
        server_round = self.server_round = int(config[SERVER_ROUND])
        with self.own_draws("around-training", server_round):
            self.take(parameters)
            metrics = self.features.before_training(self, config)
            phases = self._prepare_round(server_round)
            self.passed(PROTOTYPES)
            with self.own_draws("dropout", server_round):
                terms = self._train(server_round, phases)
            self._trained_here = True
            self._contribution = self.finish_round(server_round)
            self.passed(PROTOTYPES)
            self._keep_private()
            metrics |= terms | self.features.after_training(self, config)
            self.passed(EVALUATION)
        self._bench.check(self.model)
        return self._shared(), len(self.train_set), metrics

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Score the given weights on the test images of ``config["domains"]``, or on parts of them.

        Returns:
            Mean cross-entropy, number of test images, and correct, count and summed loss of each domain with the
            numbers of features; their arrays are in :attr:`records`.
        """
        self.server_round = int(config.get(SERVER_ROUND, 0))
        with self.own_draws("scores", self.server_round):
            return self._evaluated(parameters, config)

    def _evaluated(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        self.take(parameters)
        metrics: dict[str, Any] = {}
        self.records = {}
        loss, images = 0.0, 0
        with self.features.around_scores(self, config):
            mixed = self.mixes_tests or self.features.mixes_images(config)
            with self.features.around_tests(self, config):
                for domain, test in self.tests(config, mixed=mixed):
                    scores = self.score_test(test)
                    self._add_records(self.features.record(domain, scores))
                    score = DomainScore(scores.correct, len(test), scores.loss_sum, scores.others)
                    metrics |= score.to_numbers(domain)
                    loss, images = loss + scores.loss_sum, images + len(test)
            self._add_records(self.features.more_records(self, config, mixed=mixed))
            metrics |= self.features.on_scores(self, config)
        metrics |= self.features.after_scores(self, config)
        self._bench.check(self.model)
        self.passed(EVALUATION)
        return loss / max(images, 1), images, metrics

    def _add_records(self, more: Mapping[str, Arrays]) -> None:
        for name, arrays in more.items():
            self.records[name] = self.records.get(name, {}) | arrays

    def tests(self, request: Mapping[str, Any], *, mixed: bool = False) -> Iterator[tuple[str, ImageSet]]:
        """Yield each domain that a message names, with its test images to score (:func:`asked_images`)."""
        for domain, images in asked_images(self.test_set, request, self.setup.order, mixed=mixed):
            with self.of_domain(domain):
                yield domain, images

    def take(self, parameters: list[NDArray[Any]]) -> None:
        """Put what the server sent into the model and let the method act on it."""
        self._trained_here = False
        self._load(parameters)
        self.other_weights()
        self.passed(MESSAGES)
        self.received()

    def contribution(self) -> Arrays:
        """Return what the last ``fit`` contributes besides weights."""
        return self._contribution


#: What decides what training takes of a node's images.
_LOSSES = ("loss", "image_losses", "own_terms", "own_terms_of_each", "phases")
_TRAINING_HOOKS = frozenset({
    "build_model", "fit", "forward", "received", "phases", "start_round", "start_epoch", "loss", "own_terms",
    "terms_of", "gather", "finish_round", "class_prototypes", "class_means_of", "augmented_batches",
})  # fmt: skip


def _no_labels(domain: str) -> ImageSet:
    """Stand in for the test sets of a client while code of an adaptation runs."""
    raise RuntimeError(f"an adaptation asks for the labelled test set of {domain!r}; it is given test images alone")
