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

#: Values of a batch that a CPU works on at a time, so that they stay in its cache: bytes and float32.
BYTES_IN_CACHE = 3 << 19
FLOATS_IN_CACHE = 3 << 16


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
        self._transforms = _real_valued(config)
        self._frame: Tensor | None = None
        self._rows: dict[int, tuple[Tensor, Tensor]] = {}

    def plain(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Normalise images (B, H, W, 3), uint8, without augmentation; ``out`` and the result as in :meth:`train`."""
        result = _room(x, out)
        _normalise_into(result, x, *self._row(x.shape[2]))
        return self._laid_out(result)

    def train(self, x: Tensor, rng: torch.Generator, out: Tensor | None = None) -> Tensor:
        """Augment and normalise a batch; arguments and result as of :meth:`with_targets`."""
        return self.with_targets(x, torch.zeros(len(x)), rng, out)[0]

    def with_targets(
        self, x: Tensor, y: Tensor, rng: torch.Generator, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Augment and normalise a batch, and move its targets with it.

        Args:
            x: Images (B, H, W, 3), uint8, on the pipeline's device.
            y: Labels (B,), which stay as they are, or those of pixels (B, H, W), uint8. They are
                :data:`fedshift_datasets.listing.IGNORED` where something else moves into the image.
            rng: CPU generator of all that is drawn.
            out: Where the result may lie, float32, (at least B, H, W, 3): fresh memory for every batch costs
                as much as the arithmetic. Not used where colours or sizes change.

        Returns:
            Images (B, 3, H, W), float32; with ``out``, until it is used again. And the targets.
        """
        moves = draw_moves(len(x), self._config, rng)
        y = moves.of_targets(y)
        if self._transforms is None:
            result = _room(x, out)
            size = _part(x, BYTES_IN_CACHE)
            frame, row = self._frame_for(x[:size]), self._row(x.shape[2])
            for part, moved, to in zip(torch.split(x, size), moves.cut(size), torch.split(result, size), strict=True):
                _normalise_into(to, moved.apply_to(part, frame), *row)
            return self._laid_out(result), y
        # Colours are blended per channel, which is fast where each channel is one block of memory.
        real: Tensor = moves.apply_to(x).permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        from torchvision.tv_tensors import Mask  # type: ignore[import-untyped]  # as the transforms, not before

        targets = y if y.ndim == 1 else Mask(y)  # so marked, they are stretched without mixing values
        real, y, _ = self._transforms(real.div_(255.0), targets, rng)
        real.mul_(255.0 * self._scale[:, None, None]).add_(self._shift[:, None, None])
        return real.contiguous(memory_format=self._layout), y

    def _laid_out(self, images: Tensor) -> Tensor:
        """Return images (B, H, W, 3) as (B, 3, H, W): channels last a view, else a copy."""
        return images.permute(0, 3, 1, 2).contiguous(memory_format=self._layout)

    @property
    def only_moves(self) -> bool:
        """Whether images are moved and normalised, and nothing else."""
        return self._transforms is None

    def moves(self, b: int, rng: torch.Generator) -> "Moves":
        """Draw how ``b`` images move, as :meth:`train` does."""
        return draw_moves(b, self._config, rng)

    def normalised(self, x: Tensor) -> Tensor:
        """Normalise images (B, H, W, 3), uint8, into float32 of that shape."""
        return self.plain(x).permute(0, 2, 3, 1)

    def _row(self, width: int) -> tuple[Tensor, Tensor]:
        """Return scale and shift of :func:`affine` for a row of ``width`` pixels, (3 width,) each."""
        if width not in self._rows:
            self._rows[width] = self._scale.repeat(width), self._shift.repeat(width)
        return self._rows[width]

    def _frame_for(self, x: Tensor) -> Tensor:
        """Return memory for the padded images of a part, made at the first batch of this size."""
        frame = self._frame
        if frame is None or len(frame) < 2 * len(x) or frame.shape[1:] != self._framed(x):
            frame = self._frame = make_frame(x, self._config.crop_padding)
        return frame

    def _framed(self, x: Tensor) -> tuple[int, int, int]:
        """Return the shape of one padded image."""
        _, h, w, channels = x.shape
        p = self._config.crop_padding
        return h + 2 * p, w + 2 * p, channels

    def two_views(self, x: Tensor, first: torch.Generator, second: torch.Generator) -> tuple[Tensor, Tensor]:
        """Augment the same images twice, each view from its own generator as by :meth:`train`."""
        return self.train(x, first), self.train(x, second)


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

    def cut(self, size: int) -> list["Moves"]:
        """Cut into parts of ``size`` images."""
        parts = zip(torch.split(self.corner, size, dim=1), torch.split(self.flip, size), strict=True)
        return [Moves(self.padding, corner, flip) for corner, flip in parts]

    def of_targets(self, y: Tensor) -> Tensor:
        """Return targets of pixels (B, H, W), uint8, moved as their images are; labels (B,) stay as they are."""
        if y.ndim == 1:
            return y
        of_one = y[..., None]
        return self.apply_to(of_one, make_frame(of_one, self.padding, IGNORED))[..., 0]

    def apply_to(self, x: Tensor, frame: Tensor | None = None) -> Tensor:
        """Return the windows (B, H, W, 3) of images of that shape, uint8; ``x`` itself if nothing moves.

        Args:
            x: Images (B, H, W, 3), uint8.
            frame: Memory for the padded images, from :func:`make_frame`; its zero borders are used again.
        """
        flipped = torch.nonzero(self.flip).flatten()
        if self.padding == 0 and len(flipped) == 0:
            return x
        (b, h, w, channels), p = x.shape, self.padding
        # All images, then the mirrored ones again: a flipped window is a window of the mirrored image.
        padded = (make_frame(x, p) if frame is None else frame)[: b + len(flipped)]
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


def make_frame(x: Tensor, padding: int, value: int = 0) -> Tensor:
    """Return room for padded images (B, H, W, 3), or targets (B, H, W, 1), and mirror images, filled with a value.

    Its shape is (2 B, H + 2 padding, W + 2 padding, 3).
    """
    b, h, w, channels = x.shape
    return x.new_full((2 * b, h + 2 * padding, w + 2 * padding, channels), value)


def draw_moves(b: int, config: ImageConfig, rng: torch.Generator) -> Moves:
    """Draw the random crop and flip of ``b`` images; nothing is drawn for what is off."""
    p = config.crop_padding
    corner = torch.randint(0, 2 * p + 1, (2, b), generator=rng) if p > 0 else torch.zeros(2, b, dtype=torch.int64)
    flip = torch.rand(b, generator=rng) < 0.5 if config.flip else torch.zeros(b, dtype=torch.bool)
    return Moves(p, corner, flip)


def _room(x: Tensor, out: Tensor | None) -> Tensor:
    """Return float32 memory for a batch of the shape of ``x``: the first rows of ``out``, or new."""
    return x.new_empty(x.shape, dtype=torch.float32) if out is None else out[: len(x)]


def affine(mean: Tensor, std: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return scale and shift, (3,) each, float32. They satisfy scale * x + shift = (x / 255 - mean) / std."""
    mean, std = mean.double(), std.double()
    return (1 / (255 * std)).float().to(device), (-mean / std).float().to(device)


def _normalise_into(out: Tensor, x: Tensor, scale: Tensor, shift: Tensor) -> None:
    """Write scale * x + shift into ``out``, float32, of the shape (B, H, W, 3) of ``x``.

    ``scale`` and ``shift`` stand for a whole row of pixels, (3 W,): loops over three channels at a time would
    be many times slower, and so would a division.
    """
    b, h, w, _ = x.shape
    size = _part(x, FLOATS_IN_CACHE)
    parts, results = torch.split(x.reshape(b, h, 3 * w), size), torch.split(out.view(b, h, 3 * w), size)
    for part, result in zip(parts, results, strict=True):
        torch.addcmul(shift, result.copy_(part), scale, out=result)


def _part(x: Tensor, values: int) -> int:
    """Return how many images of a batch a CPU takes at a time; an accelerator takes all."""
    return max(1, values // x[0].numel()) if x.device.type == "cpu" else len(x)


def _real_valued(config: ImageConfig) -> Any:
    """Return the configured transforms of ``fedshift_clients.images.transforms`` as one, None if there are none."""
    if not config.draws_real_values:
        return None
    from fedshift_clients.images import transforms  # with torchvision, which takes a second to import

    return transforms.compose(config)
