"""The one local training loop, behind Flower's NumPyClient; by itself it is FedAvg's client.

FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, https://arxiv.org/abs/1602.05629, algorithm 1 (ClientUpdate).

A method subclasses :class:`DomainClient` and overrides a few hooks: ``build_model``, ``private`` (what never
travels), ``start_round`` and ``start_epoch``, ``loss`` (named terms), ``finish_round`` (what it contributes)
and ``score_test`` (what happens before a test image is scored).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from flwr.client import NumPyClient
from numpy.typing import NDArray
from torch import Tensor

from clients import losses
from clients.models import networks
from clients.models.networks import Blueprint, SplitModel, batchnorm_names, set_training
from clients.modules.base import Plugin
from clients.training import precision, stopwatch
from clients.training.arrays import view
from clients.training.batches import Batch
from clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from clients.training.stopwatch import Stopwatch
from clients.training.test_parts import asked_images
from clients.training.workbench import Workbench
from datasets.base import ImageSet
from fedshift_wire.names import (
    CORRECT,
    COUNT,
    LOCAL_CORRECT,
    LOCAL_COUNT,
    LOCAL_DOMAINS,
    LOCAL_OWN_CORRECT,
    LOCAL_OWN_COUNT,
    LOSS,
    LOSS_SUM,
    LOSS_TERM,
    OTHER_CORRECT,
    SERVER_ROUND,
    VALIDATION,
    VALIDATION_CORRECT,
    VALIDATION_COUNT,
)  # fmt: skip
from fedshift_wire.params import Params
from fedshift_wire.records import Arrays
from fedshift_wire.seeding import torch_seed

MODEL_PART = "model/"  # prefix in a node's memory of the model's private parts


@dataclass(frozen=True)
class ClientSetup:
    """Who a client is and how it trains.

    Attributes:
        seed: The run's seed.
        index: The node's place in the federation; with seed and round it fixes all randomness.
        device: Where the model computes.
        profile: Whether the client measures where its time goes.
    """

    seed: int
    index: int
    device: torch.device
    model: ModelConfig
    train: TrainConfig
    images: ImageConfig
    profile: bool = False


@dataclass(frozen=True)
class Scores:
    """How a model did on a set of images.

    Attributes:
        correct: Correct top-1 predictions.
        loss_sum: Cross-entropy summed over the images.
        others: Correct predictions of the same images scored in another way, by its name.
    """

    correct: int
    loss_sum: float
    others: Mapping[str, int] = field(default_factory=dict)


class DomainClient(NumPyClient):
    """Trains and evaluates on the images of one node.

    Attributes:
        knowledge: What the server sent besides weights; set before each call of ``fit`` or ``evaluate``.
        memory: What the node keeps between calls (private parts of the model, a method's own arrays).
        validation_set: Labelled images of the node that it does not train on, or None.
        own_test: The node's own test set where it is only a part of its domain's (simulation), else None.
        server_round: The round of the current call, from 1.
        watch: Where the time of the calls went, if ``setup.profile``.
    """

    params_model: ClassVar[type[Params]] = Params
    #: Whether nodes may have different networks (``model.per_node``): then no weights travel.
    heterogeneous: ClassVar[bool] = False
    #: Whether their features must then be equally wide, because prototypes travel.
    equal_features: ClassVar[bool] = True
    #: Whether the score of a test image depends on no other image, so that nodes may share out a test set.
    scores_images_alone: ClassVar[bool] = True

    def __init__(
        self,
        model: SplitModel,
        setup: ClientSetup,
        params: Params,
        train_set: ImageSet,
        test_set: Callable[[str], ImageSet],
        validation_set: ImageSet | None = None,
        own_test: ImageSet | None = None,
        plugin: Plugin | None = None,
        bench: Workbench | None = None,
    ) -> None:
        """Make a client; ``bench``, which holds the model, is that of the client before in this process."""
        self._bench = bench or Workbench(model, setup.device, setup.train, setup.images)
        self._bench.clear()
        self.model = model
        self.setup = setup
        self.params = params
        self.train_set = train_set
        self.test_set = test_set
        self.validation_set = validation_set
        self.own_test = own_test
        self.knowledge: Arrays = {}
        self.memory: Arrays = {}
        self.server_round = 0
        self._plugin = plugin
        self._contribution: Arrays = {}
        self.watch = Stopwatch(setup.device, on=setup.profile)
        self._taken, self._buffer = self._bench.room(train_set.x.shape[1:])
        self._private = self.kept_names(model, setup.model, params, plugin)
        #: Names of the arrays that travel, in the order of the model's state dict.
        self.shared_names = [name for name in model.state_dict() if name not in self._private]

    # --- hooks of a method -------------------------------------------------------------------------

    @classmethod
    def check_run(cls, params: Params, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Raise ``ConfigError`` if the method cannot run so; called before anything starts."""

    @classmethod
    def build_model(cls, plan: Blueprint, params: Params) -> SplitModel:
        """Build the model; what a method adds must leave the initial weights of the network as they are."""
        return networks.build(plan.config.name, plan.num_classes, plan.seed)

    @classmethod
    def plugin(cls, modules: Plugin | None, params: Params) -> Plugin | None:
        """Return the modules that the model carries; by default those of the configuration's ``modules``."""
        return modules

    @classmethod
    def private(cls, model: SplitModel, config: ModelConfig, params: Params) -> frozenset[str]:
        """Return the state-dict names that never travel; by default BatchNorm if ``bn = local``."""
        return batchnorm_names(model) if config.bn == "local" else frozenset()

    @classmethod
    def personal(cls, model: SplitModel, config: ModelConfig, params: Params) -> bool:
        """Tell whether each node is scored with a model of its own; by default if parts are private."""
        return bool(cls.private(model, config, params))

    def epochs(self, server_round: int) -> int:
        """Return the local epochs of a round."""
        return self.setup.train.epochs

    def view_count(self, server_round: int) -> int:
        """Return how many augmented views of an image the loss needs: 1 or 2; 0 for the image as it is."""
        return self.setup.images.views

    def start_round(self, server_round: int) -> None:
        """Prepare what the loss needs from ``self.knowledge`` and ``self.memory``."""

    def start_epoch(self, epoch: int) -> None:
        """Prepare one local epoch (from 0)."""

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the named, weighted loss terms of a batch; their sum is minimised."""
        _, logits = self.forward(batch.x)
        return {"ce": losses.cross_entropy(logits, batch.y)}

    def finish_round(self, server_round: int) -> Arrays:
        """Return what the node contributes besides weights, after local training."""
        return {}

    def predict(self, x: Tensor) -> Tensor:
        """Return the logits (B, C) by which images (B, 3, H, W) are classified at test time."""
        return self.forward(x)[1]

    def score_test(self, test: ImageSet) -> Scores:
        """Score a test set; weights and buffers must be afterwards what they were before."""
        return Scores(*self.score(test))

    @classmethod
    def kept_names(
        cls, model: SplitModel, config: ModelConfig, params: Params, plugin: Plugin | None
    ) -> frozenset[str]:
        """Return the state-dict names that never travel: the method's and those of the model's modules."""
        return cls.private(model, config, params) | (plugin.private(model) if plugin else frozenset())

    # --- Flower's contract -------------------------------------------------------------------------

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Train for the configured local epochs from the given shared weights.

        Args:
            parameters: Shared arrays in the order of :attr:`shared_names`.
            config: Holds ``server-round`` and, in rounds in which client models are scored, ``local-domains``.

        Returns:
            The shared arrays after training, the number of training images, and the mean loss terms with,
            if asked for, the numbers of :meth:`local_scores`.
        """
        server_round = self.server_round = int(config[SERVER_ROUND])
        self._load(parameters)
        self.watch.lap(stopwatch.MESSAGES)
        if self._plugin is not None:
            self._plugin.start_round(self.model, self.torch_rng("modules", server_round))
        self.start_round(server_round)
        self.watch.lap(stopwatch.PROTOTYPES)
        terms = self._train(server_round)
        self._contribution = self.finish_round(server_round)
        self.watch.lap(stopwatch.PROTOTYPES)
        self._keep_private()
        metrics: dict[str, Any] = dict(terms)
        metrics |= self.local_scores(config.get(LOCAL_DOMAINS, ()))
        self.watch.lap(stopwatch.EVALUATION)
        return self._shared(), len(self.train_set), metrics

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Score the given weights on the test images of ``config["domains"]``, or on parts of them.

        Where ``config["validation"]`` is set, a node with a validation part scores them on it as well.

        Returns:
            Mean cross-entropy, number of test images, and correct, count and summed loss of each domain.
        """
        self.server_round = int(config.get(SERVER_ROUND, 0))
        self._load(parameters)
        self.watch.lap(stopwatch.MESSAGES)
        metrics: dict[str, Any] = {}
        loss, images = 0.0, 0
        for domain, test in asked_images(self.test_set, config, self.setup.seed):
            scores = self.score_test(test)
            metrics |= {CORRECT + domain: scores.correct, COUNT + domain: len(test), LOSS_SUM + domain: scores.loss_sum}
            metrics |= {f"{OTHER_CORRECT}{name}/{domain}": correct for name, correct in scores.others.items()}
            loss, images = loss + scores.loss_sum, images + len(test)
        if config.get(VALIDATION) and self.validation_set is not None:
            scores = self.score_test(self.validation_set)
            metrics |= {VALIDATION_CORRECT: scores.correct, VALIDATION_COUNT: len(self.validation_set)}
        self.watch.lap(stopwatch.EVALUATION)
        return loss / max(images, 1), images, metrics

    def local_scores(self, domains: Sequence[str]) -> dict[str, int]:
        """Score the model as local training left it, private parts included: a client model of FedCode.

        Args:
            domains: Whose test images; each costs one pass over them. Unless there is none, the node's own
                test set is scored too, if it has one apart from its domain's.

        Returns:
            Correct predictions and images by domain, under their names on the wire.
        """
        found: dict[str, int] = {}
        for domain in domains:
            test = self.test_set(domain)
            found |= {LOCAL_CORRECT + domain: self.score_test(test).correct, LOCAL_COUNT + domain: len(test)}
        if domains and self.own_test is not None:
            found |= {LOCAL_OWN_CORRECT: self.score_test(self.own_test).correct, LOCAL_OWN_COUNT: len(self.own_test)}
        return found

    def contribution(self) -> Arrays:
        """Return what the last ``fit`` contributes besides weights."""
        return self._contribution

    # --- tools for methods -------------------------------------------------------------------------

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Run the network under the configured precision; features (B, D) and logits (B, C) in float32."""
        with precision.autocast(self.setup.train.precision, self.setup.device):
            features, logits = self.model(x)
        return features.float(), logits.float()

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

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Return all weighted loss terms of a batch: the method's, then those of its modules."""
        terms = self.loss(batch)
        return terms if self._plugin is None else terms | self._plugin.terms(self.model, batch)

    def class_prototypes(self) -> tuple[Tensor, Tensor]:
        """Average the features of all training images by class, in evaluation mode, not augmented.

        Returns:
            Means (C, D) in float32, zero for a class the node does not hold, and counts (C,).
        """
        return self.class_means_of(lambda x: self.forward(x)[0])

    def class_means_of(self, encode: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """As :meth:`class_prototypes`, of what ``encode`` makes of images: (B, 3, H, W) to (B, D)."""
        self.model.eval()
        sums: Tensor | None = None
        with torch.inference_mode():
            for x, y in self.plain_batches(self.train_set):
                z = encode(x).float()
                sums = z.new_zeros(self.model.num_classes, z.shape[1]) if sums is None else sums
                sums.index_add_(0, y, z)
        y = torch.from_numpy(self.train_set.y)
        counts = torch.bincount(y, minlength=self.model.num_classes).to(self.setup.device)
        assert sums is not None  # a node without images does not take part
        return sums / counts.clamp(min=1)[:, None], counts

    def score(self, images: ImageSet, predict: Callable[[Tensor], Tensor] | None = None) -> tuple[int, float]:
        """Return the number of correct top-1 predictions and the summed cross-entropy.

        Args:
            images: Labelled images.
            predict: Gives the logits; by default :meth:`predict`.
        """
        self.model.eval()
        predict = predict or self.predict
        correct = torch.zeros((), dtype=torch.int64, device=self.setup.device)
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.setup.device)
        with torch.inference_mode():
            for x, y in self.plain_batches(images):
                logits = predict(x)
                correct += (logits.argmax(dim=1) == y).sum()
                loss_sum += losses.cross_entropy(logits, y) * len(y)
        return int(correct), float(loss_sum)

    @contextmanager
    def kept_weights(self) -> Iterator[None]:
        """Put all weights and buffers back afterwards to what they were before."""
        state = self.model.state_dict()
        kept = {name: tensor.clone() for name, tensor in state.items()}
        try:
            yield
        finally:
            with torch.no_grad():
                for name, tensor in state.items():
                    tensor.copy_(kept[name])

    def plain_batches(self, images: ImageSet) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield normalised images (B, 3, H, W) and labels (B,), in their order, not augmented."""
        size = self.setup.images.eval_batch
        pixels, labels = self._bench.images.get(images)
        for start in range(0, len(images), size):
            x = pixels[start : start + size].to(self.setup.device)
            yield self._bench.pipeline.plain(x, self._buffer), labels[start : start + size]

    def augmented_batches(
        self, images: ImageSet, batch_size: int, views: int, order: torch.Generator, first: torch.Generator,
        second: torch.Generator, epoch: int = 0,
    ) -> Iterator[Batch]:  # fmt: skip
        """Yield all images once, in random order.

        Args:
            images: The images; their labels are passed on as they are.
            batch_size: Images per batch; a last batch of one image joins the one before.
            views: Augmented views of each image, 1 or 2; 0 for the image as it is.
            order: CPU generator of the order.
            first: CPU generator of the first view.
            second: CPU generator of the second view.
            epoch: Passed on.
        """
        pixels, labels = self._bench.images.get(images)
        pipeline, device = self._bench.pipeline, self.setup.device
        permutation = torch.randperm(len(labels), generator=order).to(pixels.device)
        for index in _cut(permutation, batch_size):
            # index_select copies whole images, and into the same memory for every batch that has room there.
            fits = len(index) <= len(self._taken) and pixels.device.type == device.type
            taken, buffer = (self._taken[: len(index)], self._buffer) if fits else (None, None)
            x = torch.index_select(pixels, 0, index, out=taken).to(device)
            y = labels[index.to(device)]
            if views == 2:
                one, other = pipeline.two_views(x, first, second)
                yield Batch(one, y, epoch, other)
            else:
                one = pipeline.train(x, first, buffer) if views else pipeline.plain(x, buffer)
                yield Batch(one, y, epoch)

    # --- the loop ----------------------------------------------------------------------------------

    def _train(self, server_round: int) -> dict[str, float]:
        """Run the local epochs; return the loss and each of its terms, under their names on the wire.

        The loss is the mean over all samples seen, a term the mean over those that had it.
        """
        cfg = self.setup.train
        set_training(self.model, freeze_batchnorm=self.setup.model.bn == "freeze")
        optimizer = self._bench.optimizer()
        order = self.torch_rng("order", server_round)
        views = self.torch_rng("augment", server_round), self.torch_rng("augment-second", server_round)
        totals: dict[str, Tensor] = {}
        seen: dict[str, int] = {}
        epochs, view_count = self.epochs(server_round), self.view_count(server_round)
        for epoch in range(epochs):
            self.start_epoch(epoch)
            for batch in self.augmented_batches(self.train_set, cfg.batch_size, view_count, order, *views, epoch):
                self.watch.lap(stopwatch.DATA)
                terms = self.terms(batch)
                optimizer.zero_grad(set_to_none=True)
                torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                for name, term in terms.items():
                    value = term.detach() * len(batch.y)
                    totals[name] = totals[name] + value if name in totals else value
                    seen[name] = seen.get(name, 0) + len(batch.y)
                self.watch.lap(stopwatch.TRAINING)
        sums = {name: float(total) for name, total in totals.items()}
        loss = sum(total / (epochs * len(self.train_set)) for total in sums.values())
        return {LOSS: loss} | {LOSS_TERM + name: total / seen[name] for name, total in sums.items()}

    # --- weights in and out ------------------------------------------------------------------------

    def _load(self, parameters: list[NDArray[Any]]) -> None:
        """Put shared weights and the node's private parts (or their initial values) into the model."""
        state = self.model.state_dict()
        for name, array in zip(self.shared_names, parameters, strict=True):
            state[name].copy_(view(array))
        for name in self._private:
            kept = self.memory.get(MODEL_PART + name)
            state[name].copy_(self._bench.initial[name] if kept is None else view(kept))

    def _shared(self) -> list[NDArray[Any]]:
        state = self.model.state_dict()
        # Copies: the model's memory is used again, and these are the caller's.
        return [state[name].detach().cpu().numpy().copy() for name in self.shared_names]

    def _keep_private(self) -> None:
        state = self.model.state_dict()
        for name in self._private:
            self.memory[MODEL_PART + name] = state[name].detach().cpu().numpy().copy()


def _cut(permutation: Tensor, batch_size: int) -> list[Tensor]:
    """Cut a permutation (N,) into batches; a last batch of one sample joins the one before.

    BatchNorm has no variance over one sample.
    """
    parts = list(torch.split(permutation, batch_size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts
