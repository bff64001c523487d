"""Local training: the hooks that a method overrides for it, and the loop that calls them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from fedshift_clients.losses.imbalance import ClassLoss
from fedshift_clients.models.networks import set_training
from fedshift_clients.modules.base import AllModules, joined
from fedshift_clients.training.batches import Batch, Terms, cut, in_turns
from fedshift_clients.training.loss_terms import LossTerms
from fedshift_clients.training.node import NodeTools
from fedshift_clients.training.phases import DATA, TRAINING, Phase
from fedshift_core.params import P
from fedshift_core.wire.names import CE
from fedshift_datasets.base import ImageSet

Rngs = tuple[torch.Generator, torch.Generator, torch.Generator]  # of the order of images, and of both views


class LocalTrainer(NodeTools[P]):
    """Trains the model of one node; :class:`fedshift_clients.base.DomainClient` adds messages and scores.

    Attributes:
        class_loss: Cross-entropy as the run weighs classes.
    """

    _modules: AllModules
    class_loss: ClassLoss
    #: The part of local training that runs, or that ran last.
    phase = Phase(0)
    #: Whether the model is what local training left, not what the server sent.
    trained_here = False

    # --- hooks of a method -------------------------------------------------------------------------

    def phases(self, server_round: int) -> Sequence[Phase]:
        """Return the parts of a round's local training; by default one of ``train.epochs`` epochs."""
        return [Phase(self.setup.train.epochs)]

    def start_round(self, server_round: int) -> None:
        """Prepare what the loss needs from ``self.knowledge`` and ``self.memory``."""

    def start_epoch(self, epoch: int) -> None:
        """Prepare one local epoch (from 0)."""

    def loss(self, batch: Batch) -> Terms:
        """Return the named, weighted loss terms of a batch; their sum is minimised."""
        features, logits = self.forward(batch.x)  # B x D, B x C
        self.gather(features, batch.y)
        return {CE: self.cross_entropy(logits, batch.y)} | self.own_terms(features, batch) | self.weight_losses()

    def gather(self, features: Tensor, y: Tensor) -> None:
        """Remember what is needed of the features (B, D) of a step and its labels (B,)."""

    def own_terms(self, features: Tensor, batch: Batch) -> Terms:
        """Return the weighted terms of :meth:`loss` next to cross-entropy; the mean of those of each image, if any."""
        return {name: term.mean() for name, term in self.own_terms_of_each(features, batch).items()}

    def own_terms_of_each(self, features: Tensor, batch: Batch) -> Terms:
        """Return the weighted terms of :meth:`image_losses` next to cross-entropy (B,)."""
        return {}

    def image_losses(self, batch: Batch) -> Terms:
        """Return the terms of :meth:`loss` that look at images, of each image alone (B,), where the method has such.

        What :meth:`loss` is the mean of, with :meth:`weight_losses`. A class that overrides one of
        them, or :meth:`own_terms_of_each`, says that nothing else that it does with a node's images changes what is
        sent.
        """
        features, logits = self.forward(batch.x)  # B x D, B x C
        return {CE: self.cross_entropy_of_each(logits, batch.y)} | self.own_terms_of_each(features, batch)

    def weight_losses(self) -> Terms:
        """Return the terms of :meth:`loss` that look at the weights alone."""
        return {}

    def start_pass(self) -> None:
        """Begin a pass over images that are to be classified: what was made of those before does not count."""

    # --- what a method's loss is made of -----------------------------------------------------------

    def cross_entropy(self, logits: Tensor, y: Tensor, of: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy of logits (B, C) against labels (B,), as the run weighs classes.

        Args:
            logits: (B, C).
            y: What they should say, (B,).
            of: The classes of the images where these are others, (B,).
        """
        return self._class_loss(logits, y, of)

    def cross_entropy_of_each(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return :meth:`cross_entropy` of each image alone, (B,)."""
        return self._class_loss.of_each(logits, y)

    @property
    def _class_loss(self) -> ClassLoss:
        """The loss of the images of this phase: weights of classes are for the node's own."""
        return self.class_loss if self.phase.images is None else self.class_loss.unweighted()

    def training_order(self, images: ImageSet, rng: torch.Generator) -> Tensor:
        """Return the places (N,) of N of the node's images in the order in which an epoch trains on them."""
        if self.setup.train.sampler == "balanced":
            return in_turns(torch.from_numpy(images.y), rng)
        return torch.randperm(len(images), generator=rng)

    def training_batches(self, images: ImageSet, size: int, views: int, rngs: Rngs, epoch: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch as ``train.sampler`` says; arguments as of ``augmented_batches``."""
        if self.setup.train.sampler == "balanced" and self.phase.images is None:
            places = cut(self.training_order(images, rngs[0]), size)
            return self.chosen_batches(images, places, views, *rngs[1:], epoch)
        return self.augmented_batches(images, size, views, *rngs, epoch)

    def seen_images(self, draws: Tensor) -> Tensor:
        """Return how many of the node's images are behind numbers of draws by class (C,), at most."""
        held = torch.bincount(torch.from_numpy(self.train_set.y), minlength=len(draws))
        return torch.minimum(draws, held.to(draws.device))

    # --- the loop ----------------------------------------------------------------------------------

    def fresh_optimizer(self) -> torch.optim.Optimizer:
        """Return the configured optimiser with nothing left of what it did before."""
        return self._bench.optimizer()

    def terms_of(self, batch: Batch) -> Terms:
        """Return all weighted loss terms of a batch: the method's, in its phase, then those of the modules.

        Raises:
            FedShiftError: If modules have a term of a name that another has.
        """
        self._modules.start_batch(self.model, batch)
        terms = (self.phase.loss or self.loss)(batch)
        if self.phase.classes:
            return joined(terms, self._modules.terms(self.model, batch))
        self._modules.forget(self.model)
        return terms

    def train_ahead(self, epochs: int | None = None, most: int | None = None) -> None:
        """Train as the node's next local round will, for whoever wants to score the outcome; nothing is sent.

        Args:
            epochs: Of each phase, in place of its own.
            most: Of a phase with images of its own, how many of them at most.
        """
        with self.round_ahead() as (coming, phases):
            self._train(coming, [phase.cut(epochs, most) for phase in phases])

    @contextmanager
    def round_ahead(self) -> Iterator[tuple[int, Sequence[Phase]]]:
        """Prepare the node's next local round, and let its draws be those of the body; yield its number and phases."""
        coming = self.server_round + 1
        if self.normalizer is not None:
            self.normalizer.restart(coming)
        with self.of_own_images():
            phases = self._prepare_round(coming)
            with self.own_draws("dropout", coming):
                yield coming, phases

    def start_modules(self, server_round: int, prefix: str = "") -> None:
        """Let the modules draw anew by (seed, node, round); ``prefix``: for what is not local training."""
        self._modules.start_round(
            self.model, lambda purpose: self.torch_rng(prefix + purpose, server_round), self.cross_entropy
        )

    def _prepare_round(self, server_round: int) -> Sequence[Phase]:
        self.start_modules(server_round)
        self.start_round(server_round)
        return self.phases(server_round)

    def _train(self, server_round: int, phases: Sequence[Phase]) -> dict[str, float]:
        """Run the local epochs; return the loss and each of its terms, under their names on the wire.

        The loss is the mean over all samples seen, a term the mean over those that had it.
        """
        if self.trained_by is not None:
            return self.trained_by.train(self, server_round, phases)
        self.steps, done = 0, 0
        set_training(self.model, freeze_batchnorm=self.setup.model.bn == "freeze")
        learned = {name: parameter.requires_grad for name, parameter in self.model.named_parameters()}
        optimizer = self._bench.optimizer()
        rate = self.setup.train.lr_factor(server_round, self.setup.rounds)
        order, first, second = (self.torch_rng(name, server_round) for name in ("order", "augment", "augment-second"))
        seen = LossTerms()
        for self.phase in phases:
            self.phase.check(learned)
            for name, parameter in self.model.named_parameters():
                parameter.requires_grad_(learned[name] and self.phase.learns(name))
            if self.phase.fresh:
                optimizer = self._bench.optimizer()
            for group in optimizer.param_groups:
                group["lr"] = rate * (self.setup.train.lr if self.phase.lr is None else self.phase.lr)
            for epoch in range(done, done + self.phase.epochs):
                self._train_epoch(epoch, optimizer, (order, first, second), seen)
            done += self.phase.epochs
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(learned[name])
        return seen.means()

    def _train_epoch(self, epoch: int, optimizer: torch.optim.Optimizer, rngs: Rngs, seen: LossTerms) -> None:
        """Train for an epoch of the phase on batches that the generators draw: their order, and both views."""
        cfg, phase = self.setup.train, self.phase
        images = self.train_set if phase.images is None else phase.images
        size = cfg.batch_size if phase.batch_size is None else phase.batch_size
        views = self.setup.images.views if phase.views is None else phase.views
        self.start_epoch(epoch)
        for batch in self.training_batches(images, size, views, rngs, epoch):
            self.passed(DATA)
            terms = self.terms_of(batch)
            optimizer.zero_grad(set_to_none=True)
            torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
            if cfg.clip is not None:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), cfg.clip)
            optimizer.step()
            self.steps += 1
            seen.add(terms, len(batch.y))
            self.passed(TRAINING)
