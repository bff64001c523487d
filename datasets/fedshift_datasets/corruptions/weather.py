"""Corruptions of the weather: snow, frost, fog, and bright light."""

import math

import numpy as np

from fedshift_datasets.corruptions.arrays import Constants, Draws, Floats, Pixels, pixels, trailed, unit, zoomed
from fedshift_datasets.corruptions.frost_texture import TEXTURES, frost_textures
from fedshift_datasets.corruptions.levels import LARGE_SIZE, SMALL_SIZE

#: Directions in which snow falls.
SNOW_DEGREES = (-135.0, -45.0)
#: Whitened ground under snow: brightness times this plus SNOW_LIFT.
SNOW_GAIN, SNOW_LIFT = 1.5, 0.5
#: Brightness of red, green and blue (ITU-R 601), as OpenCV weighs them.
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
#: Scale at which frost lies on images of 32 pixels; on images of 224 it is 1.
FROST_SMALL_SCALE = 0.2
FOG_START = 100.0


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
