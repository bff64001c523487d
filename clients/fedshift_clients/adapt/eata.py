"""EATA: entropy minimisation on few samples, without forgetting [Niu et al., 2022].

Paper: "Efficient Test-Time Model Adaptation without Forgetting", Shuaicheng Niu, Jiaxiang Wu, Yifan Zhang, Yaofo Chen,
Shijian Zheng, Peilin Zhao, Mingkui Tan, ICML 2022; https://arxiv.org/abs/2204.02610. Reference code: mr-eggplant/EATA
at commit f739b36.

As Tent, but a step is made of those samples alone whose prediction is sure enough (Eq. 3) and unlike the mean one so
far (Eqs 4 and 5), the sure ones weighing more, and scale and shift are held to where they began, the more the more
predictions of clean images depend on them (Eqs 8 and 9).

Symbols: H_i entropy of the prediction p_i, E_0 its margin, m the moving mean of predictions that counted, theta scale
and shift of all BatchNorm, theta^0 where they began, F Fisher values, beta the weight.

Deviations: (1) clean images are the node's own training images, of which the paper has 2,000 of the test domain's
source; (2) dropout is off, where the code leaves the network in training mode; (3) frozen BatchNorm stays as it is.
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift_clients.adapt.batchnorm import BatchNormTuning, entropy
from fedshift_clients.adapt.params import EATAParams
from fedshift_clients.adapt.stream import LEAST, Predictor, Stream
from fedshift_clients.training import optimizers
from fedshift_clients.training.trainer import LocalTrainer

MARGIN = 0.4  # E_0 over ln C
KEPT = 0.9  # of the moving mean of predictions, by batch


class EATA(BatchNormTuning):
    """Predicts batch after batch, and adapts the model to what in it is sure and new.

    Args:
        model: As of the base.
        predict: Likewise.
        params: Its parameters.
        clean: Batches of training images (B, 3, H, W), of which Fisher values are taken; None holds nothing (what the
            paper calls ETA).

    Attributes:
        fisher: F, one tensor for each weight in the order of the layers; empty without clean images.
    """

    def __init__(
        self,
        model: nn.Module,
        predict: Callable[[Tensor], Tensor],
        params: EATAParams,
        clean: Iterable[Tensor] | None = None,
    ) -> None:
        super().__init__(model, predict, "eata")
        self._params = params
        self.fisher = [] if clean is None else self._fisher_values(clean)
        self._began = [weight.detach().clone() for weight in self._tuned]
        self._mean: Tensor | None = None  # m, (C,)
        self._optimizer = optimizers.sgd(self._tuned, lr=params.lr, momentum=params.momentum)

    def __call__(self, images: Tensor) -> Tensor:
        """Return the logits (B, C) of two images or more, and take a step by those that count."""
        with torch.enable_grad():
            logits = self._logits(images)
            unsure = entropy(logits)  # B
            margin = self._params.margin or MARGIN * math.log(logits.shape[1])
            counts = self._choose(unsure.detach(), logits.detach().softmax(dim=1), margin)
            if counts.any():
                weight = torch.exp(margin - unsure.detach())
                loss = (weight * unsure)[counts].mean() + self._held()
                self._optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                self._optimizer.step()
        return logits.detach()

    def _choose(self, unsure: Tensor, predicted: Tensor, margin: float) -> Tensor:
        """Return which samples count, (B,), and move the mean prediction on by them."""
        counts = unsure < margin
        if self._mean is not None:
            alike = F.cosine_similarity(self._mean[None], predicted, dim=1)
            counts &= alike.abs() < self._params.redundancy
        if counts.any():
            new = predicted[counts].mean(dim=0)
            self._mean = new if self._mean is None else KEPT * self._mean + (1 - KEPT) * new
        return counts

    def _held(self) -> Tensor | float:
        """Return beta times the sum of F (theta - theta^0)^2."""
        terms = (
            (fisher * (weight - began).square()).sum()
            for fisher, weight, began in zip(self.fisher, self._tuned, self._began, strict=bool(self.fisher))
        )
        return self._params.fisher_alpha * sum(terms)

    def _fisher_values(self, batches: Iterable[Tensor]) -> list[Tensor]:
        r"""Return how much predictions of batches b of images (B, 3, H, W) depend on each scale and shift.

        .. math:: F=\frac1B\sum_b\Big(\nabla_\theta\frac1{|b|}\sum_{i\in b}\mathrm{CE}(l_i,\arg\max_k l_{ik})\Big)^2
        """
        sums = [torch.zeros_like(weight) for weight in self._tuned]
        number = 0
        for x in batches:
            with torch.enable_grad():
                logits = self._logits(x)
                loss = F.cross_entropy(logits, logits.detach().argmax(dim=1))
                slopes = torch.autograd.grad(loss, self._tuned, allow_unused=True)
            for total, slope in zip(sums, slopes, strict=True):
                if slope is not None:
                    total += slope.square()
            number += 1
        return [total / max(number, 1) for total in sums]


class EATAAdaptation(Stream[EATAParams]):
    """EATA ahead of a score, its Fisher values from the node's own training images."""

    name = "eata"
    of_batchnorm = True
    tunes_encoder = True
    uses_training_images = True

    def predictor(self, client: LocalTrainer) -> Predictor:
        """Return EATA on the client's model; a node with one image has nothing to take Fisher values of."""
        held = client.drawn("eata-fisher", self.params.fisher_samples)
        clean = None
        if self.params.fisher_alpha > 0 and len(held) >= LEAST:
            clean = (x for x, _ in client.plain_batches(held, LEAST, self.params.batch_size))
        with client.of_own_images():
            return EATA(client.model, client.predict, self.params, clean)
