"""Augmentation and normalisation of whole batches, on the device that holds the images.

Every random number comes from the generator that is passed in, one draw per sample. Crop, flip and
normalisation work on uint8 here; what needs real numbers (colours, stretching) is in
``fedshift_clients.images.transforms``.
"""

import torch
from torch import Tensor

from fedshift_clients.images.transforms import transformed
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
        mean, std = torch.tensor(config.mean).double(), torch.tensor(config.std).double()
        # scale * x + shift = (x / 255 - mean) / std, by channel
        self._scale, self._shift = (1 / (255 * std)).float().to(device), (-mean / std).float().to(device)

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
        moves = Moves(len(x), self._config, rng)
        x = moves.apply_to(x)
        if y.ndim > 1:
            y = moves.apply_to(y[..., None], IGNORED)[..., 0]
        if not self._config.draws_real_values:
            return self.plain(x), y
        # Colours are blended per channel, which is fast where each channel is one block of memory.
        real = x.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format).div_(255.0)
        real, y = transformed(real, y, self._config, rng)
        real.mul_(255.0 * self._scale[:, None, None]).add_(self._shift[:, None, None])
        return real.contiguous(memory_format=self._layout), y


class Moves:
    """Window of each padded image, and the images that are mirrored; nothing is drawn for what is off.

    Args:
        number: B, of the images.
        config: Says how.
        rng: CPU generator of the draws.
    """

    def __init__(self, number: int, config: ImageConfig, rng: torch.Generator) -> None:
        self._padding = p = config.crop_padding
        self._corner = torch.zeros(2, number, dtype=torch.int64)  # top and left of each window
        if p > 0:
            self._corner = torch.randint(0, 2 * p + 1, (2, number), generator=rng)
        self._flip = torch.zeros(number, dtype=torch.bool)  # the window is mirrored left to right
        if config.flip:
            self._flip = torch.rand(number, generator=rng) < 0.5

    def apply_to(self, x: Tensor, value: int = 0) -> Tensor:
        """Return the windows (B, H, W, 3) of images of that shape, uint8; ``x`` itself if nothing moves.

        Args:
            x: Images (B, H, W, 3), or masks (B, H, W, 1), uint8.
            value: What borders are filled with.
        """
        flipped = torch.nonzero(self._flip).flatten()
        if self._padding == 0 and len(flipped) == 0:
            return x
        (b, h, w, channels), p = x.shape, self._padding
        # All images, then the mirrored ones again: a flipped window is a window of the mirrored image.
        padded = x.new_full((b + len(flipped), h + 2 * p, w + 2 * p, channels), value)
        padded[:b, p : p + h, p : p + w] = x
        padded[b:, p : p + h, p : p + w] = x.index_select(0, flipped.to(x.device)).flip(2)
        image = torch.arange(b)
        image[flipped] = torch.arange(b, len(padded))
        top, left = self._corner
        left = torch.where(self._flip, 2 * p - left, left)
        # Where each row of each window starts if all pixels stand in one line: B x H.
        starts = ((image * (h + 2 * p) + top)[:, None] + torch.arange(h)) * (w + 2 * p) + left[:, None]
        rows = padded.view(-1).unfold(0, channels * w, channels)  # a view of every run of w pixels
        return rows.index_select(0, starts.view(-1).to(x.device)).view(x.shape)
