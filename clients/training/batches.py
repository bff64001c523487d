"""Mini-batches: what a loss is given, and how images are cut into them."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """One mini-batch on the device: images x (B, 3, H, W), float32, normalised; labels y (B,).

    The memory of ``x`` is used again for the next batch. With two views, ``second`` is another
    augmentation of the same images. With ``model.precompute`` both are what is kept of the images, features (B, D) or
    maps; ``images`` are then the images themselves, not augmented, for a client that ``reads_images``.
    """

    x: Tensor
    y: Tensor
    epoch: int
    second: Tensor | None = None
    images: Tensor | None = None

    def __repr__(self) -> str:
        """Show no image: this ends up in messages and logs."""
        return f"Batch({len(self.y)} images, epoch {self.epoch})"


def cut(permutation: Tensor, batch_size: int) -> list[Tensor]:
    """Cut a permutation (N,) into batches; a last batch of one sample joins the one before.

    BatchNorm has no variance over one sample.
    """
    parts = list(torch.split(permutation, batch_size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts
