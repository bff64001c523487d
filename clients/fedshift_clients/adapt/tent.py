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

from fedshift_clients.adapt.batchnorm import BatchNormTuning, entropy
from fedshift_clients.adapt.params import TentParams
from fedshift_clients.adapt.stream import Predictor, Stream
from fedshift_clients.training import optimizers
from fedshift_clients.training.trainer import LocalTrainer


class Tent(BatchNormTuning):
    """Predicts batch after batch, and adapts the model to each; arguments as of its base, and its parameters."""

    def __init__(self, model: nn.Module, predict: Callable[[Tensor], Tensor], params: TentParams | None = None) -> None:
        super().__init__(model, predict, "tent")
        self._params = params or TentParams()
        self._optimizer = optimizers.adam(self._tuned, lr=self._params.lr)

    def __call__(self, images: Tensor) -> Tensor:
        """Return the logits (B, C) of two images or more, and take a step by them."""
        for _ in range(self._params.steps):
            with torch.enable_grad():
                logits = self._logits(images)
                self._optimizer.zero_grad(set_to_none=True)
                entropy(logits).mean().backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
        return logits.detach()


class TentAdaptation(Stream[TentParams]):
    """Tent ahead of a score."""

    name = "tent"
    of_batchnorm = True
    tunes_encoder = True

    def predictor(self, client: LocalTrainer) -> Predictor:
        """Return Tent on the client's model."""
        return Tent(client.model, client.predict, self.params)
