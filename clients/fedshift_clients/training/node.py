"""What every client works with: the model on the bench, batches, scoring, generators, weights in and out. No hook."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
from flwr.client import NumPyClient
from numpy.typing import NDArray
from torch import Tensor

from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training import precision, statistics
from fedshift_clients.training.arrays import cloned, own_array, put, view
from fedshift_clients.training.class_means import EpochMeans
from fedshift_clients.training.eval_slices import Scores, most_loss
from fedshift_clients.training.grading import Grading
from fedshift_clients.training.image_batches import ImageBatches
from fedshift_clients.training.inputs import ClientSetup, Normalizer, Observer, RoundInputs, Scalars
from fedshift_clients.training.model_cache import Workbench
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FedShiftError
from fedshift_core.params import NoiseParams, P, Parametrised
from fedshift_core.plural import plural
from fedshift_core.seeding import generator, torch_seed, unpredictable
from fedshift_core.wire.site_images import FederationImages
from fedshift_datasets.base import ImageSet

if TYPE_CHECKING:  # it trains such clients
    from fedshift_clients.training.dp_sgd import PrivateTraining

T = TypeVar("T")
MODEL_PART = "model/"  # prefix in a node's memory of the model's private parts


class NodeTools(ImageBatches, NumPyClient, Parametrised[P]):
    """The model of one node, and what a method needs to train and to score it.

    Attributes:
        knowledge: The arrays that the server sent besides weights, as :meth:`prepare` was given them.
        scalars: The numbers and words that the server's method sent this node; likewise.
        memory: What the node keeps between calls (private parts of the model, a method's own arrays).
        state: The model's weights and buffers, by state-dict name: what changes them, changes the model.
        public_set: Gives the labelled images that all nodes have, to a method that uses them (``uses_public``).
        server_round: The round of the current call, from 1.
        steps: Optimiser steps of the last local training.
        statistics: BatchNorm's statistics that the server sent with the weights, by state-dict name; likewise.
        shared_names: Names of the arrays that travel each round, in the order of the model's state dict.
        shared_frozen: Names of those that are the same on all nodes and never change, so that they travel once.
        passed: Is called with the name of each part of the work that is over (``fedshift_clients.training.phases``).
        normalizer: What normalises batches in place of the configuration's mean and std; None: nothing.
        federation_images: Means and variances of all nodes' pixels (``statistics.share=nodes``); None elsewhere.
        grading: How images are scored against their targets.
        trained_by: What trains the model, and releases class prototypes, in the place of the usual loop; None: nothing.
    """

    #: Whether it contributes :meth:`class_prototypes` and nothing else, once in a round.
    sends_prototypes: ClassVar[bool] = False
    #: Of which classes the secure sum of the round has rows, (C,); None without one.
    summed: NDArray[np.bool_] | None = None

    def __init__(
        self,
        model: SplitModel,
        setup: ClientSetup,
        params: P,
        train_set: ImageSet,
        private: frozenset[str],
        bench: Workbench | None,
        public_set: Callable[[], ImageSet] | None,
    ) -> None:
        self._bench = bench or Workbench(model, setup.device, setup.train, setup.images)
        self._bench.clear()
        self.model = model
        self.setup = setup
        self.params = params
        self.train_set = train_set
        self.prepare(RoundInputs())
        self.public_set = public_set
        self.server_round = 0
        self.steps = 0
        self._last_draw: tuple[ImageSet, tuple[str, int, bool], ImageSet] | None = None  # of which, what for, what
        self.passed: Callable[[str], None] = lambda part: None
        self.trained_by: PrivateTraining | None = None
        self.grading = Grading()
        self.federation_images: FederationImages | None = None
        self.normalizer: Normalizer | None = None
        self._private = private
        self.state = self._bench.state
        self.shared_frozen = model.frozen - private
        self.shared_names = [name for name in self.state if name not in private | model.frozen]
        self._by_batch = False  # scores take BatchNorm's statistics of each batch
        self._observing: Mapping[str, Callable[[ImageSet], Observer]] = {}  # give the observers of a pass
        self._observers: Mapping[str, Observer] = {}  # of the pass that goes on
        self._predictor: Callable[[Tensor], Tensor] | None = None  # of the adaptation by which images are scored
        self._parameters: list[NDArray[Any]] = []
        self._received: dict[str, Tensor] | None = None

    def prepare(self, inputs: RoundInputs) -> None:
        """Take what comes with a message, before ``fit`` or ``evaluate``."""
        self.knowledge, self.scalars = inputs.knowledge, Scalars(inputs.scalars)
        self.memory, self.statistics = inputs.memory, inputs.statistics

    def place(self, name: str, number: int) -> int | None:
        """Return the place that the server tells, of so many; None if it tells none.

        Raises:
            FedShiftError: If there is no such place.
        """
        place = self.scalars.get(name)
        if place is not None and not (isinstance(place, int) and 0 <= place < number):
            raise FedShiftError(f"the server tells {name}={place}, and sends {number}")
        return place

    @property
    def inputs(self) -> RoundInputs:
        """The inputs of a message that the client works with now."""
        return RoundInputs(self.knowledge, self.scalars, self.memory, self.statistics)

    @property
    def begun(self) -> str:
        """The digest of what the model began from besides the seed, as the server sent it; empty for nothing."""
        return self._bench.begun

    def begin(self, start: Arrays, digest: str) -> None:
        """Begin from values, by state-dict name, that the server sent once; they are checked."""
        self._bench.begin(start, digest)

    def predict(self, x: Tensor) -> Tensor:
        """Return the logits (B, C) by which images (B, 3, H, W) are classified at test time."""
        return self.forward(x)[1]

    def classify(self, x: Tensor) -> Tensor:
        """Return the logits (B, C) by which images are scored now: :meth:`predict`, or an adaptation's in its place."""
        return self.predict(x) if self._predictor is None else self._predictor(x)

    @property
    def received_weights(self) -> dict[str, Tensor]:
        """The shared weights and buffers as they came, by name, on the device: read from them only."""
        if self._received is None:
            state = self.state
            with torch.no_grad():
                self._received = {
                    name: torch.empty_like(state[name]).copy_(view(array))
                    for name, array in zip(self.shared_names, self._parameters, strict=True)
                }
        return self._received

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Run the network under the configured precision; features (B, D) and logits (B, C) in float32."""
        with precision.autocast(self.setup.train.precision, self.setup.device):
            features, logits = self.model(x)
        return features.float(), logits.float()

    def encode(self, x: Tensor) -> Tensor:
        """Return the features (B, D) of images (B, 3, H, W), as :meth:`forward` has them."""
        return self.forward(x)[0]

    def tensor(self, name: str) -> Tensor | None:
        """Return an array of ``self.knowledge`` on the device, or None if the server sent none."""
        array = self.knowledge.get(name)
        # A copy: nobody may change what the server sent.
        return None if array is None else torch.from_numpy(array.copy()).to(self.setup.device)

    def torch_rng(self, purpose: str, server_round: int) -> torch.Generator:
        """Return a CPU generator for (run seed, purpose, node, round)."""
        rng = torch.Generator()
        rng.manual_seed(torch_seed(self.setup.seed, purpose, self.setup.index, server_round))
        return rng

    def protecting_rng(self, purpose: str, server_round: int) -> np.random.Generator:
        """Return a generator for noise or a mask that protects what the node sends.

        It is seeded by the system, so that nobody can draw the same again; by (run seed, purpose, node, round) where
        the method's parameters have ``repeatable_noise`` (:class:`fedshift_core.params.NoiseParams`).
        """
        if isinstance(self.params, NoiseParams) and self.params.repeatable_noise:
            return generator(self.setup.seed, purpose, self.setup.index, server_round)
        return unpredictable()

    @contextmanager
    def own_draws(self, purpose: str, server_round: int) -> Iterator[None]:
        """Let what is drawn from torch's global generator depend on run seed, purpose, node and round.

        Dropout and stochastic depth of libraries' and users' networks draw from it, and losses of users may. FedShift's
        own networks and methods draw nothing from it.
        """
        device, seed = self.setup.device, torch_seed(self.setup.seed, purpose, self.setup.index, server_round)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            if device.type == "cuda":
                torch.manual_seed(seed)
            else:
                torch.default_generator.manual_seed(seed)  # the same numbers, and a hundredth of the time
            yield

    def of_domain(self, domain: str) -> AbstractContextManager[None]:
        """Return what holds while images of a domain are scored, which need not be the node's."""
        return nullcontext() if self.normalizer is None else self.normalizer.of_domain(domain)

    def of_own_images(self) -> AbstractContextManager[None]:
        """Return what holds while the node's training images are looked at, in the midst of a score too."""
        return self.of_domain("")

    def class_prototypes(self) -> tuple[Tensor, Tensor]:
        """Average the features of all training images by class, in evaluation mode, not augmented.

        Returns:
            Means (C, D) in float32, zero for a class the node does not hold, and counts (C,).
        """
        if self.trained_by is not None:
            return self.trained_by.class_prototypes(self)
        return self.class_means_of(self.encode)

    def class_means_of(self, encode: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """As :meth:`class_prototypes`, of what ``encode`` makes of images: (B, 3, H, W) to (B, D)."""
        self.model.eval()
        means = EpochMeans(self.model.num_classes, self.setup.device)
        with torch.inference_mode(), self.of_own_images():
            for x, y in self.plain_batches(self.train_set):
                means.add(encode(x).float(), y)
        return means.result()

    def encoded(self, images: ImageSet, encode: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Return what ``encode`` makes of images, not augmented, (N, D) float32, and their labels (N,)."""
        self.model.eval()
        parts, labels = list[Tensor](), list[Tensor]()
        with torch.inference_mode(), precision.autocast(self.setup.train.precision, self.setup.device):
            for x, y in self.plain_batches(images):
                parts.append(encode(x).float())
                labels.append(y)
        return torch.cat(parts).clone(), torch.cat(labels).clone()

    def score(self, images: ImageSet, predict: Callable[[Tensor], Tensor] | None = None) -> tuple[float, float]:
        """Return the number of correct top-1 predictions and the summed cross-entropy, or what ``grading`` has of them.

        Args:
            images: Labelled images.
            predict: Gives the logits; by default :meth:`classify`.

        Raises:
            FedShiftError: If these are not one for each target and class.
        """
        self.model.eval()
        predict = self.as_scored(predict or self.classify)
        correct = torch.zeros((), dtype=torch.int64, device=self.setup.device)
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.setup.device)
        with torch.inference_mode():
            for x, y in self.plain_batches(images, least=2 if self._by_batch else 1):
                logits = predict(x)
                wanted = (len(y), self.model.num_classes, *y.shape[1:])
                if logits.shape != wanted:
                    raise FedShiftError(
                        f"logits of shape {tuple(logits.shape)} for {plural(len(y), 'image')}; predict must return "
                        f"{wanted}"
                    )
                predicted = logits.argmax(dim=1)
                correct = correct + self.grading.right(predicted, y)
                loss_sum += self._loss_sum(logits, y)
                for observer in self._observers.values():
                    observer.add(logits, predicted, y)
        return correct.item(), float(loss_sum)

    def _loss_sum(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy summed over a batch; under an owner's policy each counts up to a bound."""
        if self.setup.least_images == 1:
            return self.grading.loss_sum(logits, y)
        most = most_loss(self.model.num_classes)
        each = self.grading.loss_of_each(logits, y)
        return each.nan_to_num(nan=most, posinf=most).clamp(max=most).double().sum()

    def scored(self, images: ImageSet, predict: Callable[[Tensor], Tensor] | None = None) -> Scores:
        """As :meth:`score`, with what observers make of it where there are any (:meth:`observed_by`)."""
        self._observers = observers = {name: make(images) for name, make in self._observing.items()}
        try:
            correct, loss_sum = self.score(images, predict)
        finally:
            self._observers = {}
        return Scores(correct, loss_sum, seen={name: observer.total() for name, observer in observers.items()})

    @contextmanager
    def observed_by(self, observers: Mapping[str, Callable[[ImageSet], Observer]]) -> Iterator[None]:
        """Let observers look on at each pass of :meth:`scored`, by name; each is made for the images of the pass."""
        before, self._observing = self._observing, observers
        try:
            yield
        finally:
            self._observing = before

    @contextmanager
    def scoring_by_batch(self) -> Iterator[None]:
        """Let scores go by BatchNorm's statistics of each batch."""
        self._by_batch = True
        try:
            yield
        finally:
            self._by_batch = False

    def as_scored(self, run: Callable[[Tensor], T]) -> Callable[[Tensor], T]:
        """Return how the model runs while scores go by the statistics of each batch, else ``run`` itself."""
        if not self._by_batch:
            return run

        def with_its_own(x: Tensor) -> T:
            with statistics.by_batch(self.model):
                return run(x)

        return with_its_own

    def drawn(self, purpose: str, most: int, *, listed: bool = False) -> ImageSet:
        """Return at most so many of the node's training images, drawn by the run's seed, the same in all rounds.

        Args:
            purpose: What they are for.
            most: The largest number.
            listed: In the order of the list, not in that of the draw.
        """
        if listed and most >= len(self.train_set):
            return self.train_set
        key = (purpose, most, listed)
        if self._last_draw is None or self._last_draw[0] is not self.train_set or self._last_draw[1] != key:
            order = self.setup.order(purpose, self.setup.index).permutation(len(self.train_set))[:most]
            self._last_draw = self.train_set, key, self.train_set.select(np.sort(order) if listed else order)
        return self._last_draw[2]

    def take_statistics(self, most: int) -> tuple[dict[str, statistics.Moments], int]:
        """Sum up what BatchNorm layers are given of the node's training images, not augmented.

        Each batch is normalised by itself on its way, and images of files are listed class by class: they are mixed
        unless ``evaluate.bn_order`` says otherwise.

        Args:
            most: How many images are looked at, at most: a sample that is the same in all rounds.

        Returns:
            By name of the layer, and of how many images.
        """
        held = self.drawn("bn-sample", most, listed=self.setup.bn_order == "listed")
        batches = (x for x, _ in self.plain_batches(held, least=2))
        return statistics.take(self.model, self.forward, batches), len(held)

    @contextmanager
    def kept_weights(self) -> Iterator[None]:
        """Put all weights and buffers back afterwards to what they were before, and which weights learn.

        Raises:
            FedShiftError: If some were replaced in place of being changed.
        """
        kept = cloned(self.state)
        learn = [(parameter, parameter.requires_grad) for parameter in self.model.parameters()]
        try:
            yield
            self._bench.check(self.model)
        finally:
            put(self.state, kept)
            for parameter, learns in learn:
                parameter.requires_grad_(learns)

    def _load(self, parameters: list[NDArray[Any]]) -> None:
        """Put shared weights and the node's private parts (or their initial values) into the model."""
        self._parameters, self._received = parameters, None
        state = self.state
        for name, array in zip(self.shared_names, parameters, strict=True):
            state[name].copy_(view(array))
        # What is frozen is as it was; written again, it would be held against its kept features again.
        for name in self._private if self._bench.frozen is None else self._private - self.model.frozen:
            kept = self.memory.get(MODEL_PART + name)
            state[name].copy_(self._bench.initial[name] if kept is None else view(kept))

    def _shared(self) -> list[NDArray[Any]]:
        return [own_array(self.state[name]) for name in self.shared_names]

    def _keep_private(self) -> None:
        state = self.state
        for name in self._private:
            self.memory[MODEL_PART + name] = own_array(state[name])
