"""The four styles in which the embedded data set draws its digits: scan, texture, street, sketch."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedshift_datasets.arrays import Floats, Pixels


class Drawn(NamedTuple):
    """Drawn digits.

    Attributes:
        pixels: RGB images, shape (N, 32, 32, 3).
        ink: The ink in sight, shape (N, 32, 32), 0..1: that of ``pixels`` before colours, blur and noise.
    """

    pixels: Pixels
    ink: Floats


Renderer = Callable[[Floats, np.random.Generator], Drawn]

SIZE = 32  # pixels of an image's sides

#: Empty source pixels around a digit, so that outlines and rotations have room.
SOURCE_MARGIN = 1

SCAN_EXPOSURE = (0.85, 1.0)
SCAN_NOISE = 0.01

#: How far the channels of a texture's two colours are from their extreme. Both keep away from the
#: middle, where inverting would change nothing, and from each other, so that the texture shows.
TEXTURE_STRONG = (0.0, 0.12)
TEXTURE_PALE = (0.18, 0.36)
#: Share of images with a channel that changes sides, and so with a strong texture.
TEXTURE_FREE_SHARE = 0.35
TEXTURE_GRAIN = 0.02
NOISE_OCTAVES = (8.0, 4.0, 2.0, 1.0)
STRIPE_CYCLES = (2.0, 6.0)
CHECK_CYCLES = (1.5, 4.0)
EDGE_SHARPNESS = 4.0
BLOB_SIGMA = 2.5
BLOB_SHARPNESS = 2.0

STREET_ANGLE = 20.0
STREET_SCALE = (0.8, 1.1)
STREET_SHIFT = 2.0
#: Distance of neighbouring digits in pixels: less than SIZE, so that their edges are in sight.
STREET_PITCH = 23
STREET_BRIGHTNESS = (0.4, 0.8)
STREET_CONTRAST = (0.18, 0.38)
STREET_CHROMA = (0.1, 0.3)
#: Turns of hue between a digit's colour and its background's.
STREET_HUE_GAP = (0.2, 0.8)
STREET_SHADE = 0.1
STREET_BLUR = 0.7
STREET_NOISE = 0.015

SKETCH_LEVEL = 0.4
SKETCH_WOBBLE = 0.45
SKETCH_WOBBLE_SIGMA = 3.0
SKETCH_WIDTH = (0.7, 1.1)
SKETCH_WIDTH_CHANGE = 0.2
SKETCH_WIDTH_LIMITS = (0.5, 1.5)
SKETCH_PENCIL = (0.05, 0.35)
SKETCH_PAPER = (0.93, 1.0)
SKETCH_GRAIN = 0.015
#: Slope of the ink below which a pixel cannot be near an outline.
SKETCH_FLAT = 0.03


def upsample(ink: Floats) -> Floats:
    """Enlarge ink maps (N, 8, 8) smoothly to (N, 32, 32) with a margin; both in 0..1."""
    from scipy import ndimage  # here: it takes a second to import

    side = ink.shape[-1] + 2 * SOURCE_MARGIN
    # One cubic spline per axis is a linear map: find its matrix once, and use it for all images.
    matrix = ndimage.zoom(np.eye(side), (SIZE / side, 1.0), order=3, mode="grid-constant", grid_mode=True)
    inner = matrix[:, SOURCE_MARGIN:-SOURCE_MARGIN]
    enlarged: Floats = (inner @ ink @ inner.T).astype(np.float32)
    return enlarged.clip(0.0, 1.0)


def _between(rng: np.random.Generator, limits: tuple[float, float], *shape: int) -> Floats:
    """Draw numbers of ``shape`` uniformly between two limits."""
    return rng.uniform(*limits, shape).astype(np.float32)


def _noise(rng: np.random.Generator, shape: tuple[int, ...], sigma: float) -> Floats:
    """Draw smooth noise over the last two axes, each map with mean about 0 and deviation 1."""
    from scipy import ndimage  # here: it takes a second to import

    white = rng.standard_normal(shape).astype(np.float32)
    smooth: Floats = ndimage.gaussian_filter(white, sigma, mode="wrap", axes=(-2, -1))
    smooth /= smooth.std(axis=(-2, -1), keepdims=True)
    return smooth


def _pixels(colours: Floats) -> Pixels:
    """Turn colours in 0..1, shape (N, 32, 32, 3), into uint8; what is outside is clipped."""
    pixels: Pixels = np.rint(colours.clip(0.0, 1.0) * 255.0).astype(np.uint8)
    return pixels


def _grid() -> Floats:
    """Return pixel coordinates (row, column) relative to the centre, shape (2, 32, 32)."""
    line = np.arange(SIZE, dtype=np.float32) - (SIZE - 1) / 2
    return np.stack(np.meshgrid(line, line, indexing="ij"))


def scan(ink: Floats, rng: np.random.Generator) -> Drawn:
    """Draw digits as a scanner saw them: light grey ink on black.

    Args:
        ink: Ink maps, shape (N, 32, 32), 0..1.
        rng: Source of exposure and sensor noise.

    Returns:
        The images, and the ink as it is.
    """
    exposure = _between(rng, SCAN_EXPOSURE, len(ink), 1, 1)
    grey = ink * exposure + SCAN_NOISE * rng.standard_normal(ink.shape, np.float32)
    return Drawn(_pixels(np.repeat(grey[..., None], 3, axis=-1)), ink)


def _noise_field(count: int, rng: np.random.Generator) -> Floats:
    """Draw multi-octave noise, shape (count, 32, 32), 0..1."""
    octaves = [sigma * _noise(rng, (count, SIZE, SIZE), sigma) for sigma in NOISE_OCTAVES]
    total = np.sum(octaves, axis=0)
    return _squash(total / total.std(axis=(1, 2), keepdims=True))


def _wave(count: int, rng: np.random.Generator, cycles: tuple[float, float], turn: Floats) -> Floats:
    """Draw plane waves of -1..1, shape (count, 32, 32), running in the directions ``turn`` (radians)."""
    rows, columns = _grid() / SIZE
    along = rows * np.sin(turn)[:, None, None] + columns * np.cos(turn)[:, None, None]
    phase = _between(rng, (0.0, 2 * np.pi), count, 1, 1)
    wave: Floats = np.sin(2 * np.pi * _between(rng, cycles, count, 1, 1) * along + phase)
    return wave


def _squash(values: Floats) -> Floats:
    """Map numbers around 0 smoothly to 0..1."""
    squashed: Floats = np.tanh(values)
    return (squashed + np.float32(1.0)) / np.float32(2.0)


def _stripe_field(count: int, rng: np.random.Generator) -> Floats:
    """Draw stripes in any direction, shape (count, 32, 32), 0..1."""
    turn = _between(rng, (0.0, np.pi), count)
    return _squash(EDGE_SHARPNESS * _wave(count, rng, STRIPE_CYCLES, turn))


def _check_field(count: int, rng: np.random.Generator) -> Floats:
    """Draw chequers in any direction, shape (count, 32, 32), 0..1."""
    turn = _between(rng, (0.0, np.pi), count)
    crossed = _wave(count, rng, CHECK_CYCLES, turn) * _wave(count, rng, CHECK_CYCLES, turn + np.float32(np.pi / 2))
    return _squash(2 * EDGE_SHARPNESS * crossed)


def _blob_field(count: int, rng: np.random.Generator) -> Floats:
    """Draw round blobs with rather sharp rims, shape (count, 32, 32), 0..1."""
    return _squash(BLOB_SHARPNESS * _noise(rng, (count, SIZE, SIZE), BLOB_SIGMA))


FIELDS = (_noise_field, _stripe_field, _check_field, _blob_field)


def _texture_colours(count: int, rng: np.random.Generator) -> Floats:
    """Draw the two colours of each texture, shape (2, count, 1, 1, 3), 0..1."""
    depth = np.stack([_between(rng, limits, count, 1, 1, 3) for limits in (TEXTURE_STRONG, TEXTURE_PALE)])
    # A channel that is bright (or dark) in both colours makes its inverse stand out everywhere. Between
    # black (0: no channel is bright) and white (7: all are) lie the six strong hues.
    hue = rng.integers(1, 7, size=(count, 1, 1, 1))
    bright = np.stack(2 * [(hue >> np.arange(3)) % 2 == 1])
    # One channel may be free to change sides, which gives a strong texture.
    free = rng.integers(3, size=(count, 1, 1, 1)) == np.arange(3)
    bright[1] ^= free & (rng.random((count, 1, 1, 1)) < TEXTURE_FREE_SHARE)
    return np.where(bright, np.float32(1.0) - depth, depth)


def _backgrounds(count: int, rng: np.random.Generator) -> Floats:
    """Draw colour textures of several kinds, shape (count, 32, 32, 3), 0..1."""
    kind = rng.integers(len(FIELDS), size=count)
    mix = np.empty((count, SIZE, SIZE, 1), np.float32)
    for number, field in enumerate(FIELDS):
        mix[kind == number, ..., 0] = field(int(np.sum(kind == number)), rng)
    first, second = _texture_colours(count, rng)
    grain = TEXTURE_GRAIN * rng.standard_normal((count, SIZE, SIZE, 3), np.float32)
    colours: Floats = first + (second - first) * mix + grain
    return colours.clip(0.0, 1.0)


def texture(ink: Floats, rng: np.random.Generator) -> Drawn:
    """Blend digits into colour textures, as MNIST-M does: the distance of background and ink.

    Args:
        ink: Ink maps, shape (N, 32, 32), 0..1.
        rng: Source of the textures; each image gets its own.

    Returns:
        The images, and the ink as it is.
    """
    return Drawn(_pixels(np.abs(_backgrounds(len(ink), rng) - ink[..., None])), ink)


def _strips(ink: Floats, rng: np.random.Generator) -> Floats:
    """Put two other digits of the same batch next to each digit.

    Args:
        ink: Ink maps, shape (N, 32, 32).
        rng: Chooses the neighbours.

    Returns:
        Wider ink maps, shape (N, 32, 32 + 2 * STREET_PITCH), with the digit in the middle.
    """
    count = len(ink)
    # A step of 1 .. N - 1 never leads back to the digit itself; a digit alone is its own neighbour.
    steps = rng.integers(1, max(count, 2), size=(2, count))
    left, right = (np.arange(count) + steps) % count
    strip = np.zeros((count, SIZE, SIZE + 2 * STREET_PITCH), np.float32)
    for place, source in enumerate((ink[left], ink, ink[right])):
        part = strip[:, :, place * STREET_PITCH : place * STREET_PITCH + SIZE]
        np.maximum(part, source, out=part)
    return strip


def _look_at(strip: Floats, rng: np.random.Generator) -> Floats:
    """Cut 32 x 32 pixels from the middle of strips (N, 32, W), turned, scaled and shifted at random."""
    from scipy import ndimage  # here: it takes a second to import

    count, height, width = strip.shape
    angle = np.deg2rad(_between(rng, (-STREET_ANGLE, STREET_ANGLE), count, 1, 1))
    zoom = _between(rng, STREET_SCALE, count, 1, 1)
    shift = _between(rng, (-STREET_SHIFT, STREET_SHIFT), 2, count, 1, 1)
    rows, columns = _grid()[:, None] + shift
    from_rows = (rows * np.cos(angle) - columns * np.sin(angle)) / zoom + (height - 1) / 2
    from_columns = (rows * np.sin(angle) + columns * np.cos(angle)) / zoom + (width - 1) / 2
    image = np.broadcast_to(np.arange(count)[:, None, None], from_rows.shape)
    seen: Floats = ndimage.map_coordinates(strip, [image, from_rows, from_columns], order=1)
    return seen


def _colour(brightness: Floats, hue: Floats, chroma: Floats) -> Floats:
    """Return colours (N, 1, 1, 3) of a mean ``brightness``, with ``hue`` in turns. All inputs are (N, 1, 1, 1)."""
    channel = np.arange(3, dtype=np.float32) / 3
    return brightness + chroma * np.cos(2 * np.pi * (hue - channel))


def _street_colours(count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draw colours of background and digit, each (count, 1, 1, 3): another hue, and the digit darker."""
    shape = (count, 1, 1, 1)
    ground = _between(rng, STREET_BRIGHTNESS, *shape)
    digit = ground - _between(rng, STREET_CONTRAST, *shape)
    hue = _between(rng, (0.0, 1.0), *shape)
    other = hue + _between(rng, STREET_HUE_GAP, *shape)
    chroma = _between(rng, STREET_CHROMA, 2, *shape)
    return _colour(ground, hue, chroma[0]), _colour(digit, other, chroma[1])


def street(ink: Floats, rng: np.random.Generator) -> Drawn:
    """Draw digits as house numbers in a photograph: coloured, askew, blurred, with neighbours.

    Args:
        ink: Ink maps, shape (N, 32, 32), 0..1. Neighbouring digits are taken from these alone.
        rng: Source of neighbours, positions, colours and noise.

    Returns:
        The images, and the ink of each digit and of what is in sight of its neighbours.
    """
    from scipy import ndimage  # here: it takes a second to import

    count = len(ink)
    mask = _look_at(_strips(ink, rng), rng)[..., None]
    ground, digit = _street_colours(count, rng)
    slope = _between(rng, (-STREET_SHADE, STREET_SHADE), 2, count, 1, 1)
    shade = np.sum(slope * (_grid()[:, None] * 2 / SIZE), axis=0)[..., None]
    colours = ndimage.gaussian_filter(ground + (digit - ground) * mask + shade, STREET_BLUR, axes=(1, 2))
    return Drawn(_pixels(colours + STREET_NOISE * rng.standard_normal(colours.shape, np.float32)), mask[..., 0])


def _wobbled(ink: Floats, rng: np.random.Generator) -> Floats:
    """Move the pixels of ink maps (N, 32, 32) a little, as an unsteady hand does."""
    from scipy import ndimage  # here: it takes a second to import

    moves = SKETCH_WOBBLE * _noise(rng, (2, *ink.shape), SKETCH_WOBBLE_SIGMA)
    image, rows, columns = np.indices(ink.shape, dtype=np.float32)
    moved: Floats = ndimage.map_coordinates(ink, [image, rows + moves[0], columns + moves[1]], order=1)
    return moved


def _outline_distance(ink: Floats) -> Floats:
    """Return about how many pixels each pixel of (N, 32, 32) is away from the outline of its digit."""
    rows, columns = np.gradient(ink, axis=(1, 2))
    distance: Floats = np.abs(ink - SKETCH_LEVEL) / np.maximum(np.hypot(rows, columns), SKETCH_FLAT)
    return distance


def sketch(ink: Floats, rng: np.random.Generator) -> Drawn:
    """Draw the outlines of digits with a dark pencil on white paper.

    Args:
        ink: Ink maps, shape (N, 32, 32), 0..1.
        rng: Source of wobble, line width, darkness and paper.

    Returns:
        The images, and the ink whose outlines they show.
    """
    count = len(ink)
    change = 1.0 + SKETCH_WIDTH_CHANGE * _noise(rng, ink.shape, SKETCH_WOBBLE_SIGMA)
    width = _between(rng, SKETCH_WIDTH, count, 1, 1) * np.clip(change, *SKETCH_WIDTH_LIMITS)
    moved = _wobbled(ink, rng)
    line = np.exp(-((_outline_distance(moved) / width) ** 2))
    paper = _between(rng, SKETCH_PAPER, count, 1, 1) + SKETCH_GRAIN * rng.standard_normal(ink.shape, np.float32)
    grey = paper + (_between(rng, SKETCH_PENCIL, count, 1, 1) - paper) * line
    return Drawn(_pixels(np.repeat(grey[..., None], 3, axis=-1)), moved)


RENDERERS: dict[str, Renderer] = {"scan": scan, "texture": texture, "street": street, "sketch": sketch}
