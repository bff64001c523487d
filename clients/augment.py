"""Augmentation and normalisation of whole batches, on the device that holds the images.

Every random number comes from the generator that is passed in, one draw per sample.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def random_crop(x: Tensor, padding: int, rng: torch.Generator) -> Tensor:
    """Pad by ``padding`` zeros on each side and cut a random window of the old size.

    Args:
        x: Images (B, H, W, 3), uint8.
        padding: Pixels; 0 returns ``x``.
        rng: CPU generator, two integers per sample.
    """
    if padding == 0:
        return x
    b, h, w, _ = x.shape
    padded = F.pad(x, (0, 0, padding, padding, padding, padding))
    top, left = torch.randint(0, 2 * padding + 1, (2, b), generator=rng).to(x.device)
    rows = top[:, None] + torch.arange(h, device=x.device)  # B x H
    columns = left[:, None] + torch.arange(w, device=x.device)  # B x W
    sample = torch.arange(b, device=x.device)
    return padded[sample[:, None, None], rows[:, :, None], columns[:, None, :]]


def random_flip(x: Tensor, rng: torch.Generator) -> Tensor:
    """Flip each image (B, H, W, 3) left to right with probability one half."""
    flip = (torch.rand(len(x), generator=rng) < 0.5).to(x.device)
    return torch.where(flip[:, None, None, None], x.flip(2), x)


def to_float(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Turn uint8 images (B, H, W, 3) into normalised float32 (B, 3, H, W), channels last in memory.

    Args:
        x: Images, uint8.
        mean: Per channel, shape (3,), on the scale 0 to 1.
        std: Per channel, shape (3,).
    """
    # The permuted view of an NHWC tensor *is* NCHW in channels_last memory: no copy.
    return ((x.float() / 255.0 - mean) / std).permute(0, 3, 1, 2)
