"""The 15 common corruptions of Hendrycks & Dietterich, for test images of 28 to 224 pixels.

Paper: Dan Hendrycks, Thomas Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations", ICLR 2019, https://arxiv.org/abs/1903.12261
Reference code: hendrycks/robustness, ``make_imagenet_c.py`` (224 pixels, at commit e0377d4) and ``make_cifar_c.py``
(32 pixels, at commit ca36008)

The result for an image depends on its pixels, the corruption, the severity, the seed and its key, and on nothing
else: not on the batch it comes in, nor on the order. One seed and key give the same noise, flakes or direction at
every severity, so severities differ in strength alone.

Deviations, each described where it is made:

1. Constants of sizes between 32 and 224 are interpolated (:mod:`fedshift_datasets.corruptions.levels`).
2. Frost is drawn, not photographed.
3. Elastic transform has constants of its own; glass blur has three at 32 pixels and two at 224, motion blur and frost
   one at 32. With theirs, a severity does no more than the one before it.
4. Defocus blur weighs pixels by the disk's cover of them; zoom blur enlarges about the exact centre.
5. Values are rounded to 8 bits once, at the end; theirs are truncated, in places twice.
"""

from collections.abc import Callable

import numpy as np

from fedshift_core.errors import ConfigError, DataError
from fedshift_core.seeding import generator
from fedshift_datasets.arrays import Indices, Pixels
from fedshift_datasets.corruptions import kinds
from fedshift_datasets.corruptions.arrays import Constants, Draws
from fedshift_datasets.corruptions.levels import SMALL, constants

_Corruption = Callable[[Pixels, Constants, Draws], Pixels]

#: Names of the corruptions, in the paper's order.
CORRUPTIONS = tuple(SMALL)
HIGHEST_SEVERITY = 5
SMALLEST_SIDE, LARGEST_SIDE = 28, 224

#: Values that are processed together: as many as fit a CPU's cache, but at least a few images.
_CHUNK = 1 << 18
_LEAST_CHUNK = 8


def corrupt(x: Pixels, name: str, severity: int, keys: Indices, seed: int = 0) -> Pixels:
    """Return corrupted test images.

    Args:
        x: Images, shape (N, H, W, 3), uint8, RGB, H = W from 28 to 224.
        name: One of :data:`CORRUPTIONS`.
        severity: 1 to 5; 0 returns ``x`` itself.
        keys: The key of each image's random numbers, shape (N,), int64, not negative: its index in the test set.
        seed: Seed of all random numbers, not negative.

    Returns:
        Corrupted images, shape (N, H, W, 3), uint8.

    Raises:
        ConfigError: If there is no such corruption or severity.
        DataError: If the images are not as above.
    """
    if name not in CORRUPTIONS:
        raise ConfigError(f"corruption: {name!r} is not known; allowed are {', '.join(CORRUPTIONS)}")
    _check(x, severity)
    if severity == 0:
        return x
    corruption: _Corruption = getattr(kinds, name)
    level = constants(name, severity, x.shape[1])
    out = np.empty_like(x)
    step = max(_LEAST_CHUNK, _CHUNK // x[0].size) if len(x) else 1
    for start in range(0, len(x), step):
        part = slice(start, start + step)
        out[part] = corruption(x[part], level, Draws(seed, f"corruption-{name}", keys[part]))
    return out


def random_corruption(x: Pixels, severity: int, keys: Indices, seed: int = 0) -> Pixels:
    """Return images each with one of the 15 corruptions, drawn by seed and key: FedICON's covariate shift.

    Arguments and result are those of :func:`corrupt`.

    Raises:
        ConfigError: If there is no such severity.
        DataError: If the images are not as there.
    """
    _check(x, severity)
    drawn = [int(generator(seed, "corruption-choice", int(key)).integers(len(CORRUPTIONS))) for key in keys]
    out = x.copy()
    for number, name in enumerate(CORRUPTIONS):
        own = np.flatnonzero(np.array(drawn, np.int64) == number)
        out[own] = corrupt(x[own], name, severity, keys[own], seed)
    return out


def _check(x: Pixels, severity: int) -> None:
    if severity not in range(HIGHEST_SEVERITY + 1):
        raise ConfigError(f"corruption severity: {severity!r} is not allowed; allowed are 0 to {HIGHEST_SEVERITY}")
    square = x.ndim == 4 and x.shape[1] == x.shape[2] and x.shape[3] == 3
    if x.dtype != np.uint8 or not square or not SMALLEST_SIDE <= x.shape[1] <= LARGEST_SIDE:
        raise DataError(
            f"images to corrupt: shape {x.shape} and type {x.dtype}; allowed are (N, H, H, 3) with H from "
            f"{SMALLEST_SIDE} to {LARGEST_SIDE}, and uint8"
        )
