"""Frost drawn from seeded noise: ice ferns on a bluish veil, in place of the benchmark's photographs.

A fern has a stem, needles to both sides of it at about 60 degrees, and finer needles on those, as ice crystals
grow; ferns grow out of a few points per picture. A few pictures are made once per process and cut for each image.
"""

from functools import cache

import numpy as np
from PIL import Image, ImageDraw

from fedshift_core.seeding import generator
from fedshift_datasets.arrays import Floats, Pixels, Reals

#: How many pictures there are, as in the authors' code, and their height and width.
TEXTURES, SIDE = 5, 640
#: Like photographs, the pictures are the same whatever the seed of a run; a run's seed chooses pieces of them.
SEED = 0
POINTS, STEMS = 26, 6
STEM_LENGTH = (90.0, 240.0)
#: Needles: distance of two along a stem, and their longest length as a share of the stem's.
NEEDLE_GAP, NEEDLE_SHARE = 7.0, 0.3
BARB_GAP, BARB_SHARE = 5.0, 0.3
NEEDLE_ANGLE, ANGLE_SPREAD = np.pi / 3, 0.12
STEM_LIGHT, NEEDLE_LIGHT, BARB_LIGHT = 235, 190, 150
#: The picture is drawn in twice the size, and ice has a soft rim of this many pixels.
OVERSIZE = 2
GLOW = 3.0
VEIL_SIGMAS = (64.0, 24.0, 8.0, 2.0)
DARK = np.array([0.10, 0.16, 0.24], np.float32)
BRIGHT = np.array([0.93, 0.97, 1.0], np.float32)
VEIL_WEIGHT, ICE_WEIGHT, GLOW_WEIGHT = 0.45, 0.5, 0.45

#: Lines of a picture: start (row, column), direction in radians, and length, shape (n, 4).
Lines = Reals


def _offshoots(lines: Lines, gap: float, share: float, rng: np.random.Generator) -> Lines:
    """Grow needles to both sides of lines, ever shorter towards the tip."""
    counts = np.maximum((lines[:, 3] / gap).astype(np.int64), 1)
    parent = lines.repeat(counts, axis=0)
    along = rng.random(len(parent))
    side = rng.choice([-1.0, 1.0], len(parent))
    start = parent[:, :2] + _ends(parent) * along[:, None]
    angle = parent[:, 2] + side * (NEEDLE_ANGLE + ANGLE_SPREAD * rng.standard_normal(len(parent)))
    length = parent[:, 3] * share * (1.0 - along) * rng.uniform(0.5, 1.3, len(parent))
    return np.column_stack([start, angle, length])


def _ends(lines: Lines) -> Lines:
    """Return the way from each line's start to its end, shape (n, 2)."""
    way: Lines = np.column_stack([np.sin(lines[:, 2]), np.cos(lines[:, 2])]) * lines[:, 3:]
    return way


def _stems(rng: np.random.Generator) -> Lines:
    """Draw stems that start at a few points, shape (n, 4)."""
    points = rng.uniform(0.0, SIDE, (POINTS, 2)).repeat(STEMS, axis=0)
    angles = rng.uniform(0.0, 2 * np.pi, POINTS).repeat(STEMS) + np.tile(np.arange(STEMS) * np.pi / 3, POINTS)
    angles += ANGLE_SPREAD * rng.standard_normal(len(angles))
    return np.column_stack([points, angles, rng.uniform(*STEM_LENGTH, len(points))])


def _ice(rng: np.random.Generator) -> Floats:
    """Draw ferns, shape (SIDE, SIDE), 0..1."""
    picture = Image.new("L", (SIDE * OVERSIZE, SIDE * OVERSIZE))
    pen = ImageDraw.Draw(picture)
    stems = _stems(rng)
    needles = _offshoots(stems, NEEDLE_GAP, NEEDLE_SHARE, rng)
    barbs = _offshoots(needles, BARB_GAP, BARB_SHARE, rng)
    for lines, light, width in ((barbs, BARB_LIGHT, 1), (needles, NEEDLE_LIGHT, 2), (stems, STEM_LIGHT, 3)):
        starts = lines[:, :2]
        corners = np.column_stack([starts, starts + _ends(lines)]) * OVERSIZE
        for top, left, bottom, right in corners.tolist():
            pen.line((left, top, right, bottom), fill=light, width=width)
    drawn = np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BOX))
    return drawn.astype(np.float32) / np.float32(255.0)


def _veil(rng: np.random.Generator) -> Floats:
    """Draw smooth noise of several sizes, shape (SIDE, SIDE), 0..1."""
    from scipy import ndimage  # here: it takes a second to import

    total = np.zeros((SIDE, SIDE), np.float32)
    for sigma in VEIL_SIGMAS:
        octave = ndimage.gaussian_filter(rng.standard_normal((SIDE, SIDE), np.float32), sigma, mode="wrap")
        total += octave / octave.std() * np.float32(sigma**0.5)
    veil: Floats = (np.tanh(total / total.std()) + np.float32(1.0)) / np.float32(2.0)
    return veil


def _picture(number: int) -> Pixels:
    """Draw one picture of frost, shape (SIDE, SIDE, 3)."""
    from scipy import ndimage  # here: it takes a second to import

    rng = generator(SEED, "frost-texture", number)
    ice, veil = _ice(rng), _veil(rng)
    glow = ndimage.gaussian_filter(ice, GLOW, mode="wrap")
    light = (VEIL_WEIGHT * veil + ICE_WEIGHT * ice + GLOW_WEIGHT * glow).clip(0.0, 1.0)[..., None]
    colours = DARK + (BRIGHT - DARK) * light
    picture: Pixels = np.rint(colours * 255.0).astype(np.uint8)
    return picture


@cache
def _pictures() -> Pixels:
    return np.stack([_picture(number) for number in range(TEXTURES)])


@cache
def frost_textures(scale: float) -> Pixels:
    """Return the pictures of frost, shape (TEXTURES, S, S, 3) with S = ``SIDE * scale``, read-only.

    Args:
        scale: Their size, above 0 and at most 1; one array per scale is kept.
    """
    side = round(SIDE * scale)
    reduced = [Image.fromarray(picture).resize((side, side), Image.Resampling.BOX) for picture in _pictures()]
    textures: Pixels = np.stack([np.asarray(picture) for picture in reduced])
    textures.flags.writeable = False
    return textures
