r"""Losses for classes of unequal numbers of images (the section ``train``). B batch, C classes.

The loss of an image i of class y, with p the softmax probability of y, is

.. math:: \ell_i=w_y\,(1-p)^\gamma\,(-\log p)

* ``class_weights=balanced``: :math:`w_c=n/(Kn_c)`, n images of K classes that have any.
* ``class_weights=effective``: :math:`w_c\propto(1-\beta)/(1-\beta^{n_c})`, K in sum; Cui, Jia, Lin, Song, Belongie,
  "Class-Balanced Loss Based on Effective Number of Samples", CVPR 2019, https://arxiv.org/abs/1901.05555, Eq. 4.
* ``loss=focal``: :math:`\gamma>0`; Lin, Goyal, Girshick, He, Dollar, "Focal Loss for Dense Object Detection", ICCV
  2017, https://arxiv.org/abs/1708.02002, Eq. 5, whose alpha is w.

A batch's loss is the mean of :math:`\ell_i`. It is not divided by the sum of its weights, as PyTorch does it: so it is
a mean of terms of one image each, and an image weighs the same in whatever batch it comes.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedshift_clients.losses.common import cross_entropy, cross_entropy_of_each
from fedshift_clients.training.settings import BALANCED, EFFECTIVE, TrainConfig

Numbers = NDArray[np.float64]
Counts = Sequence[float] | NDArray[np.int64]


class Classification(Protocol):
    """The loss of a classification: :meth:`ClassLoss.__call__`, or a client's ``cross_entropy``."""

    def __call__(self, logits: Tensor, y: Tensor, of: Tensor | None = None) -> Tensor:
        """Return the mean loss of logits (B, C) against classes (B,)."""


class ClassLoss:
    """Cross-entropy as the section ``train`` asks for it; without arguments it is cross-entropy, bit for bit.

    Args:
        weights: w, (C,) in float32 on the device; None weighs all classes alike.
        gamma: The exponent of focal loss; 0 for cross-entropy.
    """

    def __init__(self, weights: Tensor | None = None, gamma: float = 0.0) -> None:
        self.weights, self.gamma = weights, gamma

    def unweighted(self) -> "ClassLoss":
        """Return the loss of images of which nobody knows how frequent their classes are."""
        return ClassLoss(None, self.gamma)

    def __call__(self, logits: Tensor, y: Tensor, of: Tensor | None = None) -> Tensor:
        """Return the mean loss.

        Args:
            logits: (B, C).
            y: The classes that the logits should say, (B,).
            of: The classes of the images, by which they are weighed, (B,); by default ``y``.
        """
        plain = self.weights is None and self.gamma == 0
        return cross_entropy(logits, y) if plain else self.of_each(logits, y, of).mean()

    def of_each(self, logits: Tensor, y: Tensor, of: Tensor | None = None) -> Tensor:
        """Return the loss of each image (B,); arguments as of a call."""
        each = cross_entropy_of_each(logits, y)
        if self.gamma:
            # 1 - p = -expm1(-CE), exact also where p is near 1. Held above 0: x^gamma has no slope there below gamma 1.
            each = each * (-torch.expm1(-each)).clamp(min=torch.finfo(each.dtype).eps) ** self.gamma
        return each if self.weights is None else each * self.weights[y if of is None else of]


#: Cross-entropy that weighs all classes alike.
PLAIN = ClassLoss()


def balanced(counts: Numbers) -> Numbers:
    """Return n / (K n_c) of each class (C,), 1 of a class without images."""
    held = counts > 0
    return np.where(held, counts.sum() / (max(int(held.sum()), 1) * np.maximum(counts, _LEAST)), 1.0)


def effective(counts: Numbers, beta: float) -> Numbers:
    """Return weights by effective numbers of images (C,), their mean 1; 1 of a class without images.

    Args:
        counts: n_c, (C,).
        beta: From 0 up, below 1.
    """
    held = counts > 0
    if beta == 0 or not held.any():
        return np.ones(len(counts))
    inverse = (1 - beta) / -np.expm1(np.maximum(counts, _LEAST) * np.log(beta))  # 1 / effective number
    return np.where(held, inverse * held.sum() / inverse[held].sum(), 1.0)


_LEAST = 1e-9  # images: only so that nothing is divided by 0


def class_loss(train: TrainConfig, counts: Counts, classes: Sequence[str], device: torch.device) -> ClassLoss:
    """Return the loss of the section ``train``, whose ``class_weights`` give the classes weights, or none.

    Args:
        train: The section.
        counts: Images by class, (C,).
        classes: Names of the classes.
        device: Where it computes.
    """
    rule, numbers = train.class_weights, np.asarray(counts, np.float64)
    weights = None
    if isinstance(rule, Mapping):
        weights = np.array([rule.get(name, 1.0) for name in classes])
    elif rule in (BALANCED, EFFECTIVE):
        weights = balanced(numbers) if rule == BALANCED else effective(numbers, train.class_beta)
    on_device = None if weights is None else torch.from_numpy(weights.astype(np.float32)).to(device)
    return ClassLoss(on_device, train.focal_gamma if train.loss == "focal" else 0.0)
