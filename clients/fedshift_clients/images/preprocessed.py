"""Images that are converted once for all epochs into what the network sees. A batch is then gathered from them."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedshift_clients.images.augment import Moves

#: Bytes that a node's converted images may take; those of a node with more are converted batch by batch.
MOST_BYTES = 1 << 28


def num_bytes(images: Tensor, padding: int, flip: bool) -> int:
    """Return what converted images (N, H, W, 3) would take, with their borders and, if asked for, mirror images."""
    n, h, w, channels = images.shape
    return (2 if flip else 1) * n * (h + 2 * padding) * (w + 2 * padding) * channels * 4


class Ready:
    """Normalised images with borders of normalised zeros, and their mirror images: any window of one is a view's.

    A pixel's value depends on its byte and channel alone, so that it is the same whether images are moved and then
    normalised or the other way round.
    """

    def __init__(self, images: Tensor, normalise: Callable[[Tensor], Tensor], padding: int, *, flip: bool) -> None:
        """Convert images.

        Args:
            images: (N, H, W, 3), uint8, on a CPU.
            normalise: Turns images of that shape into float32 of that shape.
            padding: Zeros on each side, in pixels.
            flip: Whether mirror images will be asked for.
        """
        self._images, self._padding, (n, h, w, channels) = len(images), padding, images.shape
        inside = slice(padding, padding + h), slice(padding, padding + w)
        self._frames = torch.empty((2 if flip else 1) * n, h + 2 * padding, w + 2 * padding, channels)
        if padding:
            self._frames[:] = normalise(torch.zeros_like(images[:1]))[0, 0, 0]
        real = normalise(images)
        self._frames[:n, inside[0], inside[1]] = real
        if flip:
            self._frames[n:, inside[0], inside[1]] = real.flip(2)
        self._shape = h, w, channels

    def view(self, index: Tensor, moves: Moves, out: Tensor | None = None) -> Tensor:
        """Return moved images of a batch.

        Args:
            index: Which images (B,), int64.
            moves: How each of them moves.
            out: Where the result may lie, float32, (at least B, H, W, 3).

        Returns:
            Images (B, 3, H, W), float32, channels last in memory; with ``out``, until it is used again.
        """
        h, w, channels = self._shape
        _, height, width, _ = self._frames.shape
        top, left = moves.corner
        # A flipped window is a window of the mirrored image.
        image = torch.where(moves.flip, index + self._images, index)
        left = torch.where(moves.flip, 2 * self._padding - left, left)
        starts = ((image * height + top)[:, None] + torch.arange(h)) * width + left[:, None]
        rows = self._frames.view(-1).unfold(0, channels * w, channels)  # a view of every run of w pixels
        b = len(index)
        result = torch.empty(b, h, w, channels) if out is None else out[:b]
        torch.index_select(rows, 0, starts.view(-1), out=result.view(b * h, channels * w))
        return result.permute(0, 3, 1, 2)
