"""What a loss is given: one mini-batch."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """One mini-batch on the device: images x (B, 3, H, W), float32, normalised; labels y (B,).

    The memory of ``x`` is used again for the next batch. With two views, ``second`` is another
    augmentation of the same images.
    """

    x: Tensor
    y: Tensor
    epoch: int
    second: Tensor | None = None

    def __repr__(self) -> str:
        """Show no image: this ends up in messages and logs."""
        return f"Batch({len(self.y)} images, epoch {self.epoch})"
