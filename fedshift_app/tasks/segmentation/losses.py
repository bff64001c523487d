r"""The loss of masks, and the score of an image.

With p the softmax probabilities and g the masks, one-hot, sums over the pixels of an image that count, C classes:

.. math::
    \ell=\lambda_{CE}\operatorname*{mean}_{pixels}(-\log p_y)
        +\lambda_D\Big(1-\operatorname*{mean}_c\frac{2\sum p_cg_c+\epsilon}{\sum p_c+\sum g_c+\epsilon}\Big)

Soft Dice: Milletari, Navab, Ahmadi, "V-Net", 3DV 2016, https://arxiv.org/abs/1606.04797, with sums in place of sums of
squares. The loss of a batch is the mean of its images'.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift_app.tasks.segmentation import MaskOptions
from fedshift_clients.losses.imbalance import ClassLoss
from fedshift_clients.training.grading import Grading
from fedshift_datasets.listing import IGNORED

EPSILON = 1e-5


class MaskLoss(ClassLoss):
    """Cross-entropy and soft Dice, in the place of the cross-entropy of images."""

    def __init__(self, options: MaskOptions) -> None:
        super().__init__()
        self._options = options

    def __call__(self, logits: Tensor, y: Tensor, of: Tensor | None = None) -> Tensor:
        """Return the mean loss of logits (B, C, H, W) against masks (B, H, W); ``of`` is of classification alone."""
        return self.of_each(logits, y).mean()

    def of_each(self, logits: Tensor, y: Tensor, of: Tensor | None = None) -> Tensor:
        """Return the loss of each image (B,); arguments as of a call."""
        counts = y != IGNORED  # B x H x W
        target, logits = torch.where(counts, y, 0), logits.float()
        each = logits.new_zeros(len(y))
        if self._options.ce:
            pixels = F.cross_entropy(logits, target, reduction="none") * counts
            each = each + self._options.ce * pixels.flatten(1).sum(1) / counts.flatten(1).sum(1).clamp(min=1)
        if self._options.dice:
            each = each + self._options.dice * (1 - self._overlap(logits.softmax(1), target, counts))
        return each

    def _overlap(self, p: Tensor, target: Tensor, counts: Tensor) -> Tensor:
        """Return soft Dice of each image, (B,), the mean over its classes."""
        g = F.one_hot(target, p.shape[1]).movedim(-1, 1) * counts[:, None]
        p = p * counts[:, None]
        both, either = (sums.flatten(2).sum(2) for sums in (p * g, p + g))  # B x C
        dice = (2 * both + EPSILON) / (either + EPSILON)
        return dice[:, 0 if self._options.background else 1 :].mean(1)


def image_scores(predicted: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return the score of each image (B,): the mean Dice of the classes besides the background that either has.

    It is 1 where neither has any: nothing was to be found, and nothing was.

    Args:
        predicted: (B, H, W).
        y: Masks (B, H, W); pixels that are ignored count nowhere.
        classes: C.
    """
    counts = (y != IGNORED).flatten(1)
    own, said = (
        F.one_hot(torch.where(counts, mask.flatten(1), 0), classes)[..., 1:] * counts[..., None]
        for mask in (y, predicted)
    )
    both, either = (pixels.sum(1).double() for pixels in (own * said, own + said))  # B x (C - 1)
    there = either > 0
    dice = torch.where(there, 2 * both / either.clamp(min=1), 0).sum(1) / there.sum(1).clamp(min=1)
    return torch.where(there.any(1), dice, 1.0)


class MaskGrading(Grading):
    """Scores images by :func:`image_scores`, and compares them by the loss of training."""

    def __init__(self, loss: MaskLoss, classes: int) -> None:
        self._loss, self._classes = loss, classes

    def right(self, predicted: Tensor, y: Tensor) -> Tensor:
        """Return the scores of a batch's images, summed."""
        return image_scores(predicted, y, self._classes).sum()

    def loss_of_each(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each image, (B,)."""
        return self._loss.of_each(logits, y)

    def loss_sum(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the summed loss of a batch."""
        return self._loss.of_each(logits, y).double().sum()
