"""The 15 corruptions: of the sensor, of focus and movement, of the weather, of processing."""

import io
import math
from functools import cache

import numpy as np
from PIL import Image

from fedshift_datasets.arrays import Floats, Indices, Pixels
from fedshift_datasets.corruptions.arrays import (
    Constants,
    Draws,
    blurred,
    convolved,
    pixels,
    sampled,
    trailed,
    unit,
    zoomed,
)
from fedshift_datasets.corruptions.frost_texture import TEXTURES, frost_textures
from fedshift_datasets.corruptions.levels import LARGE_SIZE, SMALL_SIZE

#: Points per pixel and axis at which the cover of a pixel by the disk is measured.
DISK_POINTS = 16
#: Disks of a radius above this are smoothed over two pixels to each side, others over one.
WIDE_DISK = 8
MOTION_DEGREES = (-45.0, 45.0)
#: Directions in which snow falls.
SNOW_DEGREES = (-135.0, -45.0)
#: Whitened ground under snow: brightness times this plus SNOW_LIFT.
SNOW_GAIN, SNOW_LIFT = 1.5, 0.5
#: Brightness of red, green and blue (ITU-R 601), as OpenCV weighs them.
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
#: Scale at which frost lies on images of 32 pixels; on images of 224 it is 1.
FROST_SMALL_SCALE = 0.2
FOG_START = 100.0


def gaussian_noise(x: Pixels, constants: Constants, draws: Draws) -> Pixels:
    """Add normal noise; constants: its deviation (1 is white minus black)."""
    (sigma,) = constants
    return pixels(unit(x) + np.float32(sigma) * draws.normal(*x.shape[1:]))


def shot_noise(x: Pixels, constants: Constants, draws: Draws) -> Pixels:
    """Count photons (Poisson); constants: how many of them make white."""
    (white,) = constants
    counts = np.empty(x.shape, np.float32)
    for own, image, rng in zip(counts, unit(x), draws.generators, strict=True):
        own[...] = rng.poisson(image * white)
    return pixels(counts / np.float32(white))


def impulse_noise(x: Pixels, constants: Constants, draws: Draws) -> Pixels:
    """Turn values of single channels black or white, equally often; constants: their share."""
    (share,) = constants
    chance: Floats = draws.uniform(0.0, 1.0, *x.shape[1:])
    struck: Pixels = np.where(chance < share, np.where(chance < share / 2, np.uint8(0), np.uint8(255)), x)
    return struck


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


def _luma(colours: Floats) -> Floats:
    """Return the brightness of colours (..., 3), shape (..., 1)."""
    red, green, blue = (colours[..., channel : channel + 1] * LUMA[channel] for channel in range(3))
    luma: Floats = red + green + blue
    return luma


def snow(x: Pixels, constants: Constants, draws: Draws) -> Pixels:
    """Let snow fall on a whitened image.

    Constants: mean and deviation of the noise that makes flakes, its enlargement, the threshold below which there
    is none, radius and deviation of the flakes' trails, and the share of the image that is not whitened.
    """
    mean, deviation, zoom, threshold, radius, sigma, kept = constants
    size = x.shape[1]
    noise = draws.normal(size, size, 1) * np.float32(deviation) + np.float32(mean)
    flakes = zoomed(noise, zoom)
    flakes = np.where(flakes < threshold, np.float32(0.0), flakes).clip(0.0, 1.0)
    flakes = trailed(flakes, radius, sigma, draws.uniform(*SNOW_DEGREES))
    colours = unit(x)
    white = np.maximum(colours, _luma(colours) * np.float32(SNOW_GAIN) + np.float32(SNOW_LIFT))
    ground = colours * np.float32(kept) + white * np.float32(1.0 - kept)
    return pixels(ground + flakes + flakes[:, ::-1, ::-1])


def frost(x: Pixels, constants: Constants, draws: Draws) -> Pixels:
    """Lay frost over the image; constants: the shares of the image and of the frost in the sum.

    Deviation: the frost is drawn (see :mod:`fedshift_datasets.corruptions.frost_texture`), the authors' code takes it
    from photographs. As there, each image gets a piece of one of a few pictures, reduced for small images.
    """
    image_share, frost_share = constants
    size = x.shape[1]
    place = min(max(math.log(LARGE_SIZE / size) / math.log(LARGE_SIZE / SMALL_SIZE), 0.0), 1.0)
    textures = frost_textures(FROST_SMALL_SCALE**place)
    room = textures.shape[1] - size + 1
    ice = np.empty(x.shape, np.uint8)
    for own, rng in zip(ice, draws.generators, strict=True):
        number, row, column = rng.integers((TEXTURES, room, room))
        own[...] = textures[number, row : row + size, column : column + size]
    return pixels(unit(x) * np.float32(image_share) + unit(ice) * np.float32(frost_share))


def _plasma(size: int, decay: float, draws: Draws) -> Floats:
    """Draw clouds by the diamond-square algorithm on a torus, shape (N, size, size, 1), 0..1.

    Args:
        size: Height and width; the torus has the next power of two.
        decay: Noise loses this factor twice (as amplitude and as range) with each halving of the grid.
        draws: Random numbers of each image.
    """
    side = 1 << (size - 1).bit_length()
    noise = draws.uniform(-1.0, 1.0, side * side - 1)
    grid = np.zeros((len(noise), side, side), np.float32)
    step, used, wobble = side, 0, FOG_START
    while step >= 2:
        half, cells = step // 2, side // step
        bumps = noise[:, used : used + 3 * cells * cells].reshape(-1, 3, cells, cells) * np.float32(wobble**2)
        corners = grid[:, ::step, ::step]
        rows = corners + np.roll(corners, -1, axis=1)
        centres = (rows + np.roll(rows, -1, axis=2)) / np.float32(4.0) + bumps[:, 0]
        grid[:, half::step, half::step] = centres
        right = centres + np.roll(centres, 1, axis=1) + corners + np.roll(corners, -1, axis=2)
        below = centres + np.roll(centres, 1, axis=2) + corners + np.roll(corners, -1, axis=1)
        grid[:, ::step, half::step] = right / np.float32(4.0) + bumps[:, 1]
        grid[:, half::step, ::step] = below / np.float32(4.0) + bumps[:, 2]
        step, used, wobble = half, used + 3 * cells * cells, wobble / decay
    grid -= grid.min(axis=(1, 2), keepdims=True)
    grid /= grid.max(axis=(1, 2), keepdims=True)
    return grid[:, :size, :size, None]


def fog(x: Pixels, constants: Constants, draws: Draws) -> Pixels:
    """Add clouds and keep the brightest value; constants: amount of fog, and how fast its detail fades."""
    amount, decay = constants
    colours = unit(x)
    most = colours.max(axis=(1, 2, 3), keepdims=True)
    fogged = colours + np.float32(amount) * _plasma(x.shape[1], decay, draws)
    return pixels(fogged * (most / (most + np.float32(amount))))


def brightness(x: Pixels, constants: Constants, draws: Draws) -> Pixels:
    """Raise the value of hue, saturation and value; constants: by how much."""
    (gain,) = constants
    colours = unit(x)
    value = colours.max(axis=-1, keepdims=True)
    raised = np.minimum(value + np.float32(gain), np.float32(1.0))
    # With hue and saturation kept, colours grow like the value; black has neither and turns grey.
    ratio = raised / np.where(value > 0, value, np.float32(1.0))
    return pixels(np.where(value > 0, colours * ratio, raised))


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
