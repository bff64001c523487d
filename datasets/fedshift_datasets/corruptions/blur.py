"""Corruptions of focus and movement: defocus, frosted glass, motion, zoom."""

import math
from functools import cache

import numpy as np

from fedshift_datasets.corruptions.arrays import (
    Constants,
    Draws,
    Floats,
    Indices,
    Pixels,
    blurred,
    convolved,
    pixels,
    trailed,
    unit,
    zoomed,
)

#: Points per pixel and axis at which the cover of a pixel by the disk is measured.
DISK_POINTS = 16
#: Disks of a radius above this are smoothed over two pixels to each side, others over one.
WIDE_DISK = 8
MOTION_DEGREES = (-45.0, 45.0)


def _disk(radius: float, sigma: float) -> Floats:
    """Return the kernel of a disk with smooth edges, shape (K, K) with K odd, sum 1."""
    from scipy import ndimage  # here: it takes a second to import

    smooth = 2 if radius > WIDE_DISK else 1
    reach = math.ceil(radius - 0.5) + smooth
    side = 2 * reach + 1
    line = (np.arange(side * DISK_POINTS) + 0.5) / DISK_POINTS - side / 2
    inside = line[:, None] ** 2 + line**2 <= radius**2
    cover = inside.reshape(side, DISK_POINTS, side, DISK_POINTS).mean(axis=(1, 3))
    kernel: Floats = ndimage.gaussian_filter(cover, sigma, mode="constant", radius=smooth).astype(np.float32)
    kernel /= kernel.sum()
    return kernel


def defocus_blur(x: Pixels, constants: Constants, draws: Draws) -> Pixels:
    """Blur by a disk; constants: its radius, and how far its edge is smoothed, in pixels.

    Deviation: a pixel counts as far as the disk covers it (theirs: wholly, if its middle is inside), so that a
    radius between whole pixels has its own effect.
    """
    radius, sigma = constants
    return pixels(convolved(unit(x), _disk(radius, sigma)))


@cache
def _waves(inner: int, reach: int) -> tuple[Indices, ...]:
    """Return the pixels of an inner square (inner, inner) in groups whose turn may come at once.

    The paper's loop treats one pixel after the other, from the last to the first, and each with one that is at
    most ``reach`` away. Two that touch a common pixel are at most ``2 * reach`` apart in both directions. If a row
    starts ``2 * reach + 1`` steps after the one below it, those are always at different times and in the paper's
    order, and all that happens at one time is independent.
    """
    line = np.arange(inner)[::-1]
    times = (line[:, None] * (2 * reach + 1) + line).ravel()
    order = np.argsort(times, kind="stable")
    return tuple(np.split(order, np.flatnonzero(np.diff(times[order])) + 1))


def _shuffled(size: int, delta: float, sweeps: float, draws: Draws) -> Indices:
    """Shuffle the places of each image's pixels locally.

    Args:
        size: Height and width of the images.
        delta: A pixel takes the colour of one ``floor(u)`` away in each direction, u from -delta to delta.
        sweeps: How often every pixel has its turn; of a broken number, the last sweep takes that share of pixels.
        draws: Random numbers of each image.

    Returns:
        For every pixel the place where its colour comes from, counted through all images, shape (N, size, size).
    """
    reach, turns = math.ceil(delta), math.ceil(sweeps)
    inner = size - 2 * reach
    moves = np.floor(draws.uniform(-delta, delta, turns, inner * inner, 2)).astype(np.int64)
    steps = moves[..., 0] * size + moves[..., 1]
    steps[:, -1] *= draws.uniform(0.0, 1.0, inner * inner) < sweeps - turns + 1
    count = len(steps)
    places = np.arange(count * size * size)
    first, last = reach + 1, size - reach + 1
    centres = places.reshape(count, size, size)[:, first:last, first:last].reshape(count, -1).copy()
    for turn in range(turns):
        for wave in _waves(inner, reach):
            here = centres[:, wave]
            places[here] = places[here + steps[:, turn, wave]]
    return places.reshape(count, size, size)


def glass_blur(x: Pixels, constants: Constants, draws: Draws) -> Pixels:
    """Blur, move pixels about, and blur again.

    Constants: deviation of the two blurs in pixels, the longest way of a pixel, and how often each has its turn.

    As in the authors' code, a pixel takes the colour of another; the code means to swap the two, but both sides of
    its assignment are views of one array. Broken numbers of pixels and turns, which sizes between 32 and 224 need,
    are new.
    """
    sigma, delta, sweeps = constants
    soft = blurred(unit(x), sigma)
    places = _shuffled(x.shape[1], delta, sweeps, draws)
    return pixels(blurred(soft.reshape(-1, 3)[places], sigma))


def motion_blur(x: Pixels, constants: Constants, draws: Draws) -> Pixels:
    """Draw the image out in a direction of 45 degrees or less; constants: radius and deviation of the trail."""
    radius, sigma = constants
    return pixels(trailed(unit(x), radius, sigma, draws.uniform(*MOTION_DEGREES)))


def zoom_blur(x: Pixels, constants: Constants, draws: Draws) -> Pixels:
    """Average the image with enlargements of itself; constants: the largest, less 1, and their distance.

    Deviation: enlarged about the exact centre. The authors' code cuts whole pixels first, so that the first steps
    do nothing to images of 32 pixels.
    """
    most, step = constants
    colours = unit(x)
    factors = np.linspace(1.0, 1.0 + most, round(most / step) + 1)
    # Like theirs, the sum has the image itself and its enlargement by 1.
    total = colours.copy()
    for factor in factors:
        total += zoomed(colours, float(factor))
    return pixels(total / np.float32(len(factors) + 1))
