"""Tent: entropy minimisation at test time [Wang et al., 2021].

Paper: "Tent: Fully Test-Time Adaptation by Entropy Minimization", Dequan Wang, Evan Shelhamer, Shaoteng Liu,
Bruno Olshausen, Trevor Darrell, ICLR 2021; https://arxiv.org/abs/2006.10726. Reference code: DequanWang/tent at commit
e9e926a.

Each batch is normalised by its own statistics, and scale and shift of all BatchNorm layers take one step down the
mean entropy of its predictions; everything else stays. A batch is predicted by the pass that its step is made of, so
results depend on which images share a batch, and on the order of the batches.

Deviations: (1) dropout is off, where the code leaves the network in training mode; (2) BatchNorm that is frozen
(``model.freeze``) keeps its statistics, scale and shift.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedshift_clients.adapt.batchnorm import adaptable, entropy
from fedshift_clients.adapt.params import TentParams
from fedshift_clients.adapt.stream import Predictor, Stream
from fedshift_clients.training import optimizers, statistics
from fedshift_clients.training.trainer import LocalTrainer


class Tent:
    """Predicts batch after batch, and adapts the model to each.

    Args:
        model: What holds the BatchNorm layers. It is changed: put it back, or make it anew, for a fresh start.
        predict: Its logits (B, C) of images, with gradients to its weights.
        lr: Adam's learning rate.
        steps: How many it takes by each batch.

    Raises:
        ConfigError: If there is no BatchNorm with scale and shift, or all of it is frozen.
    """

    def __init__(
        self, model: nn.Module, predict: Callable[[Tensor], Tensor], lr: float = TentParams().lr, steps: int = 1
    ) -> None:
        self._norms = adaptable(model, "tent")
        tuned = [weight for norm in self._norms for weight in norm.parameters()]
        model.eval().requires_grad_(False)
        for weight in tuned:
            weight.requires_grad_(True)
        self._model, self._predict, self._steps = model, predict, steps
        self._optimizer = optimizers.adam(tuned, lr=lr)

    def __call__(self, images: Tensor) -> Tensor:
        """Return the logits (B, C) of two images or more, and take a step by them."""
        for _ in range(self._steps):
            with torch.enable_grad(), statistics.by_batch(self._model, self._norms):
                logits = self._predict(images)
                self._optimizer.zero_grad(set_to_none=True)
                entropy(logits).mean().backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
        return logits.detach()


class TentAdaptation(Stream[TentParams]):
    """Tent ahead of a score."""

    name = "tent"
    of_batchnorm = True
    tunes_encoder = True

    def predictor(self, client: LocalTrainer, own: Predictor) -> Predictor:
        """Return Tent on the client's model."""
        return Tent(client.model, own, self.params.lr, self.params.steps)
