"""Statistics of the pixels of a set of images by channel, and of the files that they are read from."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from fedshift_datasets.arrays import Pixels, Reals

LEVELS = 256  # values of a byte
_PART = 64  # images looked at at a time
_SHARES = 4  # decimal places of a histogram
LOW, HIGH = 0.05, 0.95
OTHER = "other"  # sizes, or modes, of too few images


@dataclass(frozen=True)
class PixelStatistics:
    """Statistics of all pixels of N images; red, green and blue from 0 to 1, float64.

    Attributes:
        images: N.
        mean: Of a channel, (3,).
        variance: Around that mean, (3,).
        image_std: Mean over the images of the standard deviation within each (divisor: pixels - 1), (3,).
        low: 5th percentile, (3,).
        high: 95th percentile, (3,).
        histogram: Share of the pixels in each of equal bins, rounded, (3, bins).
    """

    images: int
    mean: Reals
    variance: Reals
    image_std: Reals
    low: Reals
    high: Reals
    histogram: Reals


def of(x: Pixels, bins: int) -> PixelStatistics:
    """Return the statistics of images (N, H, W, 3), N at least 1; ``bins`` divides 256.

    Sums are of whole numbers, so that they are the same on every machine.
    """
    n, pixels = len(x), x.shape[1] * x.shape[2]
    counts = np.zeros((3, LEVELS), np.int64)
    stds = np.zeros((n, 3))
    for start in range(0, n, _PART):
        part = x[start : start + _PART]
        # Pillow counts bytes as they are, NumPy after making them whole numbers of eight bytes.
        counts += np.reshape(Image.fromarray(part.reshape(-1, x.shape[2], 3)).histogram(), counts.shape)
        stds[start : start + _PART] = _by_image(_planes(part))[1]
    values, total = np.arange(LEVELS, dtype=np.int64), n * pixels
    sums, squares = counts @ values, counts @ values**2
    s, q = sums.astype(object), squares.astype(object)
    below = counts.cumsum(axis=1)
    return PixelStatistics(
        images=n,
        mean=sums / total / (LEVELS - 1),
        # in whole numbers of any length: 10^6 images of 1000 pixels a side would not fit into 64 bits
        variance=((total * q - s * s) / (total * (LEVELS - 1)) ** 2).astype(np.float64),
        image_std=stds.mean(axis=0),
        low=(below < LOW * total).sum(axis=1) / (LEVELS - 1),
        high=(below < HIGH * total).sum(axis=1) / (LEVELS - 1),
        histogram=(counts.reshape(3, bins, -1).sum(axis=2) / total).round(_SHARES),
    )


def styles(x: Pixels) -> Reals:
    """Return of each of images (N, H, W, 3) three means and three standard deviations, from 0 to 1, (N, 6)."""
    parts = [np.concatenate(_by_image(_planes(x[start : start + _PART])), axis=1) for start in range(0, len(x), _PART)]
    return np.concatenate([np.empty((0, 6)), *parts])


def _planes(x: Pixels) -> Pixels:
    """Return images (N, H, W, 3) as (N, 3, pixels): NumPy sums long rows ten times faster than three channels."""
    return np.ascontiguousarray(x.reshape(len(x), x.shape[1] * x.shape[2], 3).transpose(0, 2, 1))


def _by_image(planes: Pixels) -> tuple[Reals, Reals]:
    """Return means and standard deviations (divisor: pixels - 1) of images (N, 3, pixels), (N, 3) each."""
    pixels = planes.shape[2]
    # Half the width is faster, where the sum of the largest squares fits.
    whole = np.uint32 if pixels * (LEVELS - 1) ** 2 < 2**32 else np.uint64
    sums = planes.sum(axis=2, dtype=whole).astype(np.int64)
    squares = np.square(planes, dtype=np.uint16).sum(axis=2, dtype=whole).astype(np.int64)
    spread = (pixels * squares - sums * sums) / (pixels * max(pixels - 1, 1))
    return sums / (pixels * (LEVELS - 1)), np.sqrt(spread) / (LEVELS - 1)


def frequent(kinds: Iterable[str], least: int, most: int) -> dict[str, int]:
    """Return how many images are of each kind, the most frequent first; all other kinds are one, :data:`OTHER`.

    No number but 0 is below ``least``: a kind of fewer images is among the others, and so is the rarest kind that is
    left where these would still be too few.

    Args:
        kinds: The kind of each image, such as its size in the file.
        least: Least images of a kind that is named.
        most: Most kinds that are named.
    """
    counted = sorted(Counter(kinds).items(), key=lambda item: (-item[1], item[0]))
    named = [item for item in counted[:most] if item[1] >= least]
    others = sum(number for _, number in counted) - sum(number for _, number in named)
    while 0 < others < least and named:
        others += named.pop()[1]
    return dict(named) | ({OTHER: others} if others >= least else {})
