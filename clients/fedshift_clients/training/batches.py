"""Mini-batches: what a loss is given, and how images are cut into them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift_core.plural import plural

#: Named, weighted terms of a loss: scalars, or (B,) of each image.
Terms = dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """One mini-batch on the device: images x (B, 3, H, W), float32, normalised; labels y (B,).

    The memory of ``x`` is used again for the next batch. With two views, ``second`` is another
    augmentation of the same images. With ``model.precompute`` both are what is kept of the images, features (B, D) or
    maps; ``images`` are then the images themselves, not augmented, for a client that ``reads_images``. ``domains`` (B,)
    are the places of the images' domains among those of the run, where the node has several and knows them.
    """

    x: Tensor
    y: Tensor
    epoch: int
    second: Tensor | None = None
    images: Tensor | None = None
    domains: Tensor | None = None

    def __repr__(self) -> str:
        """Show no image: this ends up in messages and logs."""
        return f"Batch({plural(len(self.y), 'image')}, epoch {self.epoch})"


def in_turns(labels: Tensor, rng: torch.Generator) -> Tensor:
    """Return places (N,) of images whose classes take turns, so that each batch has all classes equally often.

    The order of the classes is drawn, and stays for the epoch: in a batch the numbers of images of two classes differ
    by one at most. Images of a class come in random order, all of them once before one comes again.

    Args:
        labels: (N,), on the CPU.
        rng: CPU generator.
    """
    held = torch.unique(labels)  # K
    turns = held[torch.randperm(len(held), generator=rng)].repeat(-(-len(labels) // max(len(held), 1)))[: len(labels)]
    order = torch.empty_like(labels)
    for label in held:
        places, images = (turns == label).nonzero()[:, 0], (labels == label).nonzero()[:, 0]
        passes = -(-len(places) // len(images))
        drawn = [images[torch.randperm(len(images), generator=rng)] for _ in range(passes)]
        if drawn:
            order[places] = torch.cat(drawn)[: len(places)]
    return order


def cut(permutation: Tensor, batch_size: int) -> list[Tensor]:
    """Cut a permutation (N,) into batches; a last batch of one sample joins the one before.

    BatchNorm has no variance over one sample.
    """
    parts = list(torch.split(permutation, batch_size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts
