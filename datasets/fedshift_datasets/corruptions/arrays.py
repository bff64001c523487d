"""What several corruptions do to batches of images: random numbers of each image, sampling, filters.

Everything here treats each image alone, to the last bit: no sum runs over images, and no step leaves the order
of an image's sums to a library that decides by the size of the batch (BLAS, FFT, convolutions of torch).
"""

import math
from functools import cached_property

import numpy as np

from fedshift_core.seeding import generator
from fedshift_datasets.arrays import Floats, Indices, Pixels

Constants = tuple[float, ...]

#: Parts of a motion trail fainter than this are left out: less than a tenth of a grey level.
FAINT = 3e-4


class Draws:
    """Random numbers of a batch: every image draws from a generator of its own, known by its key."""

    def __init__(self, seed: int, purpose: str, keys: Indices) -> None:
        self._source = (seed, purpose, keys)

    @cached_property
    def generators(self) -> list[np.random.Generator]:
        """The images' generators, made when they are first needed."""
        seed, purpose, keys = self._source
        return [generator(seed, purpose, int(key)) for key in keys]

    def normal(self, *shape: int) -> Floats:
        """Draw standard normal numbers, shape (N, *shape)."""
        drawn = np.empty((len(self.generators), *shape), np.float32)
        for own, rng in zip(drawn, self.generators, strict=True):
            rng.standard_normal(out=own, dtype=np.float32)
        return drawn

    def uniform(self, low: float, high: float, *shape: int) -> Floats:
        """Draw numbers between ``low`` and ``high``, shape (N, *shape)."""
        drawn = np.empty((len(self.generators), *shape), np.float32)
        for place, rng in enumerate(self.generators):
            drawn[place] = rng.random(shape, np.float32)
        return drawn * np.float32(high - low) + np.float32(low)


def unit(x: Pixels) -> Floats:
    """Turn uint8 into floats of 0..1."""
    return x.astype(np.float32) / np.float32(255.0)


def pixels(values: Floats) -> Pixels:
    """Turn floats of 0..1 into uint8; what is outside is clipped."""
    rounded: Pixels = np.rint(values.clip(0.0, 1.0) * np.float32(255.0)).astype(np.uint8)
    return rounded


def blurred(x: Floats, sigma: float, border: str = "nearest") -> Floats:
    """Blur batches (N, H, W, C) by a Gaussian of ``sigma`` pixels. ``border`` is a mode of SciPy's."""
    from scipy import ndimage  # here: it takes a second to import

    soft: Floats = ndimage.gaussian_filter(x, sigma, mode=border, axes=(1, 2))
    return soft


def convolved(x: Floats, kernel: Floats) -> Floats:
    """Convolve images (N, H, W, C) with one symmetric kernel (K, K), K odd; borders are mirrored."""
    height, width = x.shape[1:3]
    reach = len(kernel) // 2
    padded = np.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="reflect")
    total, part = np.zeros_like(x), np.empty_like(x)
    for row, column in np.argwhere(kernel):
        np.multiply(padded[:, row : row + height, column : column + width], kernel[row, column], out=part)
        total += part
    return total


def trailed(x: Floats, radius: float, sigma: float, degrees: Floats) -> Floats:
    """Blur each image along a line of its own, as ImageMagick's motion blur does.

    Args:
        x: Images, shape (N, H, W, C).
        radius: The trail has ``2 * ceil(radius) + 1`` steps of a pixel, all to one side.
        sigma: Deviation of the Gaussian by which the trail fades, in pixels.
        degrees: Directions, shape (N,).

    Returns:
        Blurred images, shape (N, H, W, C); pixels at the border are repeated outside.
    """
    height, width = x.shape[1:3]
    steps = range(2 * math.ceil(radius) + 1)
    weights = [weight for step in steps if (weight := math.exp(-((step / sigma) ** 2) / 2)) > FAINT]
    reach = len(weights) - 1
    padded = np.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="edge")
    total = np.zeros_like(x)
    for own, image, angle in zip(total, padded, np.deg2rad(degrees.astype(np.float64)), strict=True):
        for step, weight in enumerate(weights):
            row = reach + math.ceil(step * math.sin(angle) - 0.5)
            column = reach + math.ceil(step * math.cos(angle) - 0.5)
            own += image[row : row + height, column : column + width] * np.float32(weight / sum(weights))
    return total


def zoomed(x: Floats, factor: float) -> Floats:
    """Enlarge the middle of square images (N, H, H, C) by ``factor`` >= 1, bilinearly, to the same size."""
    size = x.shape[1]
    middle = (size - 1) / 2
    at = (np.arange(size) - middle) / factor + middle
    low = np.minimum(at.astype(np.int64), size - 2)
    share = (at - low).astype(np.float32)[:, None]
    rows = x[:, low] + (x[:, low + 1] - x[:, low]) * share[..., None]
    both: Floats = rows[:, :, low] + (rows[:, :, low + 1] - rows[:, :, low]) * share
    return both


def _mirrored(at: Floats, size: int) -> Floats:
    """Fold coordinates that leave 0 .. size - 1 by less than ``size`` back inside."""
    last = np.float32(size - 1)
    folded: Floats = np.abs(last - np.abs(last - np.abs(at)))
    return folded


def sampled(x: Floats, rows: Floats, columns: Floats) -> Floats:
    """Read images (N, H, W, C) bilinearly at coordinates (N, H, W); outside they are mirrored."""
    count, height, width, channels = x.shape
    rows, columns = _mirrored(rows, height), _mirrored(columns, width)
    top = np.minimum(rows.astype(np.int64), height - 2)
    left = np.minimum(columns.astype(np.int64), width - 2)
    down, right = (rows - top).astype(np.float32)[..., None], (columns - left).astype(np.float32)[..., None]
    flat = x.reshape(-1, channels)
    corner = (np.arange(count) * (height * width))[:, None, None] + top * width + left
    above: Floats = flat[corner] + (flat[corner + 1] - flat[corner]) * right
    below: Floats = flat[corner + width] + (flat[corner + width + 1] - flat[corner + width]) * right
    read: Floats = above + (below - above) * down
    return read
