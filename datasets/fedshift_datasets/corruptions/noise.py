"""Corruptions of the sensor: Gaussian, shot and impulse noise."""

import numpy as np

from fedshift_datasets.corruptions.arrays import Constants, Draws, Floats, Pixels, pixels, unit


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
