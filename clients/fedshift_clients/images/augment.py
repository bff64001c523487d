"""Augmentation and normalisation of whole batches, on the device that holds the images.

Every random number comes from the generator that is passed in, one draw per sample. Crop, flip and
normalisation work on uint8 here; what needs real numbers (colours, stretching) is in
``fedshift_clients.images.transforms``.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedshift_clients.training.settings import ImageConfig
from fedshift_datasets.listing import IGNORED


class Pipeline:
    """From uint8 images to what the network sees, as configured.

    Order: random crop, flip, random resized crop, colour jitter, grayscale, normalisation. What is switched
    off draws no random number. What comes out lies in memory as ``layout`` says.
    """

    def __init__(
        self, config: ImageConfig, device: torch.device, layout: torch.memory_format = torch.channels_last
    ) -> None:
        self._config, self._layout = config, layout
        self._scale, self._shift = affine(torch.tensor(config.mean), torch.tensor(config.std), device)
        self._transforms: Any = None
        if config.draws_real_values:
            from fedshift_clients.images import transforms  # with torchvision, which takes a second to import

            self._transforms = transforms.compose(config)

    def plain(self, x: Tensor) -> Tensor:
        """Normalise images (B, H, W, 3), uint8, without augmentation, into (B, 3, H, W), float32."""
        b, h, w, _ = x.shape
        shift, scale = self._shift.repeat(w), self._scale.repeat(w)  # of a row of pixels
        rows = torch.addcmul(shift, x.reshape(b, h, 3 * w).float(), scale)
        return rows.view(x.shape).permute(0, 3, 1, 2).contiguous(memory_format=self._layout)

    def train(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """Augment and normalise a batch; arguments and result as of :meth:`with_targets`."""
        return self.with_targets(x, x.new_zeros(len(x)), rng)[0]

    def with_targets(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Augment and normalise a batch, and move its targets with it.

        Args:
            x: Images (B, H, W, 3), uint8, on the pipeline's device.
            y: Labels (B,), which stay as they are, or those of pixels (B, H, W), uint8. They are
                :data:`fedshift_datasets.listing.IGNORED` where something else moves into the image.
            rng: CPU generator of all that is drawn.

        Returns:
            Images (B, 3, H, W), float32, and the targets.
        """
        moves = draw_moves(len(x), self._config, rng)
        x, y = moves.apply_to(x), moves.of_targets(y)
        if self._transforms is None:
            return self.plain(x), y
        # Colours are blended per channel, which is fast where each channel is one block of memory.
        real = x.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format).div_(255.0)
        from torchvision.tv_tensors import Mask  # type: ignore[import-untyped]  # as the transforms, not before

        targets = y if y.ndim == 1 else Mask(y)  # so marked, they are stretched without mixing values
        real, y, _ = self._transforms(real, targets, rng)
        real.mul_(255.0 * self._scale[:, None, None]).add_(self._shift[:, None, None])
        return real.contiguous(memory_format=self._layout), y


@dataclass(frozen=True)
class Moves:
    """Which window of each padded image is taken, and which images are mirrored.

    Attributes:
        padding: Zeros on each side, in pixels.
        corner: Top and left of each window (2, B), int64, on the CPU.
        flip: Whether the window is mirrored left to right (B,), bool, on the CPU.
    """

    padding: int
    corner: Tensor
    flip: Tensor

    def of_targets(self, y: Tensor) -> Tensor:
        """Return targets of pixels (B, H, W), uint8, moved as their images are; labels (B,) stay as they are."""
        if y.ndim == 1:
            return y
        return self.apply_to(y[..., None], IGNORED)[..., 0]

    def apply_to(self, x: Tensor, value: int = 0) -> Tensor:
        """Return the windows (B, H, W, 3) of images of that shape, uint8; ``x`` itself if nothing moves.

        Args:
            x: Images (B, H, W, 3), or masks (B, H, W, 1), uint8.
            value: What borders are filled with.
        """
        flipped = torch.nonzero(self.flip).flatten()
        if self.padding == 0 and len(flipped) == 0:
            return x
        (b, h, w, channels), p = x.shape, self.padding
        # All images, then the mirrored ones again: a flipped window is a window of the mirrored image.
        padded = x.new_full((b + len(flipped), h + 2 * p, w + 2 * p, channels), value)
        padded[:b, p : p + h, p : p + w] = x
        padded[b:, p : p + h, p : p + w] = x.index_select(0, flipped.to(x.device)).flip(2)
        image = torch.arange(b)
        image[flipped] = torch.arange(b, len(padded))
        top, left = self.corner
        left = torch.where(self.flip, 2 * p - left, left)
        # Where each row of each window starts if all pixels stand in one line: B x H.
        starts = ((image * (h + 2 * p) + top)[:, None] + torch.arange(h)) * (w + 2 * p) + left[:, None]
        rows = padded.view(-1).unfold(0, channels * w, channels)  # a view of every run of w pixels
        return rows.index_select(0, starts.view(-1).to(x.device)).view(x.shape)


def draw_moves(b: int, config: ImageConfig, rng: torch.Generator) -> Moves:
    """Draw the random crop and flip of ``b`` images; nothing is drawn for what is off."""
    p = config.crop_padding
    corner = torch.randint(0, 2 * p + 1, (2, b), generator=rng) if p > 0 else torch.zeros(2, b, dtype=torch.int64)
    flip = torch.rand(b, generator=rng) < 0.5 if config.flip else torch.zeros(b, dtype=torch.bool)
    return Moves(p, corner, flip)


def affine(mean: Tensor, std: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return scale and shift, (3,) each, float32. They satisfy scale * x + shift = (x / 255 - mean) / std."""
    mean, std = mean.double(), std.double()
    return (1 / (255 * std)).float().to(device), (-mean / std).float().to(device)
