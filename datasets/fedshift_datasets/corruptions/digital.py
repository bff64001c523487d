"""Corruptions of processing: contrast, elastic distortion, large pixels, JPEG."""

import io

import numpy as np
from PIL import Image

from fedshift_datasets.corruptions.arrays import Constants, Draws, Floats, Pixels, blurred, pixels, sampled, unit


def contrast(x: Pixels, constants: Constants, draws: Draws) -> Pixels:
    """Draw values to the mean of their channel; constants: the share of contrast that is left."""
    (share,) = constants
    count = x.shape[1] * x.shape[2]
    # Summed as whole numbers, which no order of summing changes.
    mean = (x.sum(axis=(1, 2), keepdims=True, dtype=np.int64) / (255 * count)).astype(np.float32)
    return pixels((unit(x) - mean) * np.float32(share) + mean)


def _tilt(size: int, draws: Draws, longest: float) -> Floats:
    """Draw an affine displacement of each image: three points move by up to ``longest`` pixels.

    Returns:
        Displacements of rows and columns, shape (N, 2, size, size).
    """
    moves = draws.uniform(-longest, longest, 3, 2, 1, 1)
    line = (np.arange(size, dtype=np.float32) - np.float32((size - 1) / 2)) / np.float32(2 * (size // 3))
    down, right = line[:, None], line
    # How much of each point's move a pixel makes: 1 at the point, 0 at the two others. The points are the
    # corners (+, +), (+, -) and (-, -) of a square of two thirds of the image.
    second = down - right
    first, third = (1 - second + down + right) / 2, (1 - second - down - right) / 2
    tilt: Floats = moves[:, 0] * first + moves[:, 1] * second + moves[:, 2] * third
    return tilt


def elastic_transform(x: Pixels, constants: Constants, draws: Draws) -> Pixels:
    """Bend and tilt the image.

    Constants, as shares of the side: deviation of the displacements, the length over which they change, and the
    longest way of the three points that tilt the image.

    Deviation: the authors' constants lead from strong tilts to fine ripples. Of ImageNet-C's, severities 1 and 2 change
    photographs about twice as much as 5 does (root of the mean squared difference 55 and 69, then 29, 30 and 31); of
    CIFAR-10-C's, each changes less than the one before (42 to 27). Ours keep the tilt of their severity 5, and let
    displacements of one length grow, to a third more than theirs. Both are made in one step, not two.
    """
    size = x.shape[1]
    deviation, length, tilt = (share * size for share in constants)
    # Smoothing white noise over s pixels in two directions leaves 1 / (2 sqrt(pi) s) of its deviation.
    waves = blurred(draws.normal(size, size, 2), length, "wrap") * np.float32(deviation * 2 * np.sqrt(np.pi) * length)
    moves = np.moveaxis(waves, -1, 1) + _tilt(size, draws, tilt)
    line = np.arange(size, dtype=np.float32)
    return pixels(sampled(unit(x), moves[:, 0] + line[:, None], moves[:, 1] + line))


def pixelate(x: Pixels, constants: Constants, draws: Draws) -> Pixels:
    """Reduce the image and enlarge it again without smoothing; constants: the reduced size as a share."""
    (share,) = constants
    size = x.shape[1]
    small = int(size * share)
    box = Image.Resampling.BOX
    pictures = (Image.fromarray(image).resize((small, small), box).resize((size, size), box) for image in x)
    return np.stack([np.asarray(picture) for picture in pictures])


def jpeg_compression(x: Pixels, constants: Constants, draws: Draws) -> Pixels:
    """Write and read the image as JPEG; constants: the quality."""
    (quality,) = constants
    decoded = np.empty_like(x)
    for own, image in zip(decoded, x, strict=True):
        with io.BytesIO() as file:
            Image.fromarray(image).save(file, "JPEG", quality=round(quality))
            own[...] = np.asarray(Image.open(file, formats=("JPEG",)))
    return decoded
