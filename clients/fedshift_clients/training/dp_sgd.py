"""Local training with differential privacy of single images, in the place of the usual loop (``privacy.name=dp-sgd``).

Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, algorithm 1. In a step each of the node's n images is
taken with probability q; with the images S that were taken, C the clipping norm and z the noise multiplier,

    g = (sum over S of g_i min(1, C / ||g_i||) + N(0, (z C)^2)) / (q n)

is the gradient that the optimiser is given. An empty S is a step too, of noise alone. Which images are taken and the
noise come from the system's entropy: the server knows the run's seed, and must know neither.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fedshift_clients.models.networks import set_training
from fedshift_clients.training.batches import Batch
from fedshift_clients.training.node import NodeTools
from fedshift_clients.training.per_image import PerImage, check, per_image, summed
from fedshift_clients.training.phases import DATA, TRAINING, Phase
from fedshift_clients.training.trainer import LocalTrainer
from fedshift_core.dp_accounting import Spending, spending
from fedshift_core.errors import FedShiftError
from fedshift_core.run_settings import WithRooms
from fedshift_core.seeding import unpredictable


class PrivateTraining:
    """The private training of one node in one round (``fedshift_clients.training.node.LocalTraining``)."""

    def __init__(self, privacy: WithRooms) -> None:
        self._privacy = privacy
        self._released = False

    def spending(self, client: NodeTools) -> Spending:
        """Return what the node's rounds spend."""
        train = client.setup.train
        return spending(
            self._privacy,
            len(client.train_set),
            train.batch_size,
            train.epochs,
            client.setup.rounds,
            prototypes=client.sends_prototypes,
        )

    # --- training ----------------------------------------------------------------------------------

    def train(self, client: LocalTrainer, server_round: int, phases: Sequence[Phase]) -> dict[str, float]:
        """Train the client's model for a round; no loss is returned, which would tell of the images.

        Raises:
            ConfigError: If the model has no gradients of single images.
            FedShiftError: If training has several parts, or is not in float32.
        """
        cfg, model = client.setup.train, client.model
        if len(phases) != 1 or phases[0] != Phase(phases[0].epochs):
            raise FedShiftError("privacy.name=dp-sgd: local training in several parts, or of other images, is refused")
        if cfg.precision != "float32":
            raise FedShiftError(f"privacy.name=dp-sgd: train.precision={cfg.precision}, allowed is float32")
        spends, client.steps = self.spending(client), 0
        self._check_model(client)
        set_training(model, freeze_batchnorm=client.setup.model.bn == "freeze")
        optimizer = client.fresh_optimizer()
        for group in optimizer.param_groups:
            group["lr"] = cfg.lr * cfg.lr_factor(server_round, client.setup.rounds)
        rng = unpredictable()  # also where the method's own noise repeats (``repeatable_noise``)
        steps = spends.steps // cfg.epochs
        views = client.torch_rng("augment", server_round), client.torch_rng("augment-second", server_round)
        with per_image(model) as images:
            for epoch in range(phases[0].epochs):
                client.start_epoch(epoch)
                for batch in _batches(client, epoch, steps, spends.sampling_rate, rng, views):
                    client.passed(DATA)
                    self._set_gradient(client, images, batch, spends, rng)
                    if cfg.clip is not None:
                        torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
                    optimizer.step()
                    client.steps += 1
                    client.passed(TRAINING)
        return {}

    def _check_model(self, client: LocalTrainer) -> None:
        """Hold the gradients of two images against autograd's: the server's word for them is not enough."""
        x, y = next(client.plain_batches(client.train_set, size=2))
        check(
            client.model,
            x,
            lambda given: summed(client.image_losses(Batch(given, y, 0))),
            freeze_batchnorm=client.setup.model.bn == "freeze",
        )

    def _set_gradient(
        self, client: LocalTrainer, images: PerImage, batch: Batch | None, spends: Spending, rng: np.random.Generator
    ) -> None:
        """Put the noised mean gradient into all parameters that learn, and that of terms of the weights on top."""
        model, clip = client.model, self._privacy.clipping_norm
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
        model.zero_grad()
        if batch is not None:
            images.clipped_sum(summed(client.image_losses(batch)), clip)
        expected = spends.sampling_rate * spends.images
        for parameter in learning:
            drawn = torch.from_numpy(rng.standard_normal(tuple(parameter.shape), dtype=np.float32))
            noise = drawn.to(parameter.device).mul_(spends.noise_multiplier * clip)
            parameter.grad = (noise if parameter.grad is None else noise.add_(parameter.grad)).div_(expected)
        if terms := client.weight_losses():
            gradients = torch.autograd.grad(summed(terms), learning, allow_unused=True)
            for parameter, gradient in zip(learning, gradients, strict=True):
                if gradient is not None and parameter.grad is not None:
                    parameter.grad.add_(gradient)

    # --- class prototypes --------------------------------------------------------------------------

    def class_prototypes(self, client: NodeTools) -> tuple[Tensor, Tensor]:
        r"""Return noised class means of clipped features, in evaluation mode, not augmented; once in a round.

        With P the clipping norm of a feature, z' the noise multiplier and S_k, n_k the sum of the clipped features and
        the number of the images of class k, what is released is

        .. math:: S_k+\mathcal N(0,(\sqrt2z'P)^2),\quad n_k+\mathcal N(0,(\sqrt2z')^2)

        An image is in one class. It moves the vector of all :math:`(S_k/P,n_k)` by at most
        :math:`\sqrt{1^2+1^2}=\sqrt2`, which is the sensitivity of this one Gaussian mechanism. What follows, the
        division and the bounds of the counts by the numbers that the node has announced, looks at no image.

        Returns:
            Means (C, D) in float32, zero for a class without an image by the noised count, and counts (C,), int64.

        Raises:
            FedShiftError: If they were released before in this round, which is accounted for once.
        """
        if self._released or not client.sends_prototypes:
            raise FedShiftError("privacy.name=dp-sgd: prototypes are released once in a round, and by no other method")
        self._released = True
        bound, classes = self._privacy.prototype_clip, client.model.num_classes
        client.model.eval()
        sums = torch.zeros(classes, client.model.feature_dim, dtype=torch.float64)
        with torch.inference_mode():
            for x, y in client.plain_batches(client.train_set):
                z = client.forward(x)[0].double().cpu()
                sums.index_add_(0, y.cpu(), z * (bound / z.norm(dim=1, keepdim=True)).clamp(max=1.0))
        announced = torch.bincount(torch.from_numpy(client.train_set.y), minlength=classes)
        rng = unpredictable()
        deviation = math.sqrt(2) * self.spending(client).prototype_noise
        sums += torch.from_numpy(rng.normal(0.0, deviation * bound, tuple(sums.shape)))
        counted = announced + torch.from_numpy(rng.normal(0.0, deviation, classes))
        counts = counted.round().long().clamp(min=torch.zeros_like(announced), max=announced)
        means = sums / counted.clamp(min=1.0)[:, None] * (counts > 0)[:, None]
        return means.float(), counts


def _batches(
    client: LocalTrainer,
    epoch: int,
    steps: int,
    rate: float,
    rng: np.random.Generator,
    views: tuple[torch.Generator, torch.Generator],
) -> Iterator[Batch | None]:
    """Yield Poisson-sampled batches, in which each image is with probability ``rate``; None for an empty one."""
    drawn = [np.flatnonzero(rng.random(len(client.train_set)) < rate) for _ in range(steps)]
    places = [torch.from_numpy(index) for index in drawn if len(index)]
    batches = client.chosen_batches(client.train_set, places, client.setup.images.views, *views, epoch)
    for index in drawn:
        yield next(batches) if len(index) else None
