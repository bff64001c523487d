"""Tent: entropy minimisation at test time [Wang et al., 2021].

Paper: "Tent: Fully Test-Time Adaptation by Entropy Minimization", Dequan Wang, Evan Shelhamer, Shaoteng Liu,
Bruno Olshausen, Trevor Darrell, ICLR 2021; https://arxiv.org/abs/2006.10726.

Each batch is normalised by its own statistics, and scale and shift of all BatchNorm layers take one step down the
mean entropy of its predictions; everything else stays. A batch is predicted by the pass that its step is made of, so
results depend on which images share a batch, and on the order of the batches.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from clients.training import optimizers, statistics
from fedshift_wire.errors import ConfigError

#: The paper's setting for all but ImageNet: Adam, batches of 128, one step a batch.
LR = 1e-3
BATCH = 128


def entropy(logits: Tensor) -> Tensor:
    r"""Return the entropy of each image's prediction, in nats.

    .. math:: H_i=-\sum_k p_{ik}\log p_{ik},\quad p_i=\operatorname{softmax}(l_i)

    Args:
        logits: l, (B, C).

    Returns:
        H, (B,).
    """
    return -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)


class Tent:
    """Predicts batch after batch, and adapts the model to each.

    Args:
        model: What holds the BatchNorm layers. It is changed: put it back, or make it anew, for a fresh start.
        predict: Its logits (B, C) of images, with gradients to its weights.
        lr: Adam's learning rate.

    Raises:
        ConfigError: If there is no BatchNorm with scale and shift.
    """

    def __init__(self, model: nn.Module, predict: Callable[[Tensor], Tensor], lr: float = LR) -> None:
        tuned = [weight for norm in statistics.layers(model).values() for weight in norm.parameters()]
        if not tuned:
            raise ConfigError("tent adapts BatchNorm's scale and shift, and this network has no BatchNorm")
        model.eval().requires_grad_(False)
        for weight in tuned:
            weight.requires_grad_(True)
        self._model, self._predict = model, predict
        self._optimizer = optimizers.adam(tuned, lr=lr)

    def __call__(self, images: Tensor) -> Tensor:
        """Return the logits (B, C) of two images or more, and take a step by them."""
        with torch.enable_grad(), statistics.by_batch(self._model):
            logits = self._predict(images)
            self._optimizer.zero_grad(set_to_none=True)
            entropy(logits).mean().backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return logits.detach()
