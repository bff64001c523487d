"""AugMix [Hendrycks et al., 2020] on batches, by torchvision, with draws from a seed of the run."""

from typing import cast

import torch
from torch import Tensor
from torchvision.transforms import v2  # type: ignore[import-untyped]


def augmix(x: Tensor, seed: int) -> Tensor:
    """Mix images with what chains of simple operations make of them.

    torchvision draws the operations once for the batch, and the weights of the mixture for each image. It draws from
    torch's global generators, which are as before afterwards.

    Args:
        x: Images (B, 3, H, W), uint8.
        seed: Of all draws.

    Returns:
        Images (B, 3, H, W), uint8.
    """
    with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
        torch.manual_seed(seed)
        return cast(Tensor, v2.AugMix()(x))
