"""Constants of the 15 corruptions by severity, for images of 32 and of 224 pixels and all sizes between.

The tables hold what Hendrycks & Dietterich chose for CIFAR-10-C (32 pixels) and for ImageNet-C (224). The
same constant stands for a length, an amount or a number of photons that has to fit the images, so a size
between is given the value between, on logarithmic scales of both: ``a ** (1 - t) * b ** t`` with
``t = log(size / 32) / log(224 / 32)``. Images of less than 32 pixels take the constants of 32.

Where the original constants do not grow in effect from one severity to the next, ours differ; each place says so.
"""

import math

SMALL_SIZE, LARGE_SIZE = 32, 224
#: Digits to which interpolated constants are rounded: two equal ends give exactly their value.
DIGITS = 9

# Constants of each severity, 1 to 5; what they mean is said where they are used. At 32 pixels others than theirs are:
#
# - glass_blur: the originals of severity 1, 2 and 4, (0.05, 1, 1), (0.25, 1, 1) and (0.25, 1, 2), blur less than their
#   followers but move pixels as far, so that more is left of the image at severity 3 than at 1;
# - motion_blur: the original severities 3 and 4, (6, 2) and (8, 2), are one: both kernels have faded out by then;
# - frost: the original of severity 4, (0.85, 0.4), has the frost of severity 3 on a darker image, and shows it no more.
#
# Of zoom_blur, np.arange(1, 1.06, 0.01) and (1, 1.11, 0.01) end with 1.06 and 1.11, the others one step before.
# At 224 pixels:
#
# - glass_blur: the original turns of a pixel at severities 1 and 3 are 2 and 3: more damage than at 2 and 4;
# - elastic_transform: the original tilt is 0.02 of 244 pixels, not of 224 (a slip, as their comment says).
_SMALL = """
gaussian_noise    0.04 | 0.06 | 0.08 | 0.09 | 0.1
shot_noise        500 | 250 | 100 | 75 | 50
impulse_noise     0.01 | 0.02 | 0.03 | 0.05 | 0.07
defocus_blur      0.3 0.4 | 0.4 0.5 | 0.5 0.6 | 1 0.2 | 1.5 0.1
glass_blur        0.4 1 0.4 | 0.4 1 0.7 | 0.4 1 1 | 0.4 1 1.5 | 0.4 1 2
motion_blur       6 1 | 6 1.5 | 6 2 | 8 2.25 | 9 2.5
zoom_blur         0.06 0.01 | 0.11 0.01 | 0.15 0.01 | 0.2 0.01 | 0.25 0.01
snow              0.1 0.2 1 0.6 8 3 0.95 | 0.1 0.2 1 0.5 10 4 0.9 | 0.15 0.3 1.75 0.55 10 4 0.9 | 0.25 0.3 2.25 0.6 12 6 0.85 | 0.3 0.3 1.25 0.65 14 12 0.8
frost             1 0.2 | 1 0.3 | 0.9 0.4 | 0.85 0.43 | 0.75 0.45
fog               0.2 3 | 0.5 3 | 0.75 2.5 | 1 2 | 1.5 1.75
brightness        0.05 | 0.1 | 0.15 | 0.2 | 0.3
contrast          0.75 | 0.5 | 0.4 | 0.3 | 0.15
elastic_transform 0.008 0.04 0.03 | 0.012 0.04 0.03 | 0.016 0.04 0.03 | 0.02 0.04 0.03 | 0.024 0.04 0.03
pixelate          0.95 | 0.9 | 0.85 | 0.75 | 0.65
jpeg_compression  80 | 65 | 58 | 50 | 40
"""  # noqa: E501
_LARGE = """
gaussian_noise    0.08 | 0.12 | 0.18 | 0.26 | 0.38
shot_noise        60 | 25 | 12 | 5 | 3
impulse_noise     0.03 | 0.06 | 0.09 | 0.17 | 0.27
defocus_blur      3 0.1 | 4 0.5 | 6 0.5 | 8 0.5 | 10 0.5
glass_blur        0.7 1 1.5 | 0.9 2 1 | 1 2 2 | 1.1 3 2 | 1.5 4 2
motion_blur       10 3 | 15 5 | 15 8 | 15 12 | 20 15
zoom_blur         0.11 0.01 | 0.15 0.01 | 0.2 0.02 | 0.24 0.02 | 0.3 0.03
snow              0.1 0.3 3 0.5 10 4 0.8 | 0.2 0.3 2 0.5 12 4 0.7 | 0.55 0.3 4 0.9 12 8 0.7 | 0.55 0.3 4.5 0.85 12 8 0.65 | 0.55 0.3 2.5 0.85 12 12 0.55
frost             1 0.4 | 0.8 0.6 | 0.7 0.7 | 0.65 0.7 | 0.6 0.75
fog               1.5 2 | 2 2 | 2.5 1.7 | 2.5 1.5 | 3 1.4
brightness        0.1 | 0.2 | 0.3 | 0.4 | 0.5
contrast          0.4 | 0.3 | 0.2 | 0.1 | 0.05
elastic_transform 0.003 0.02 0.0218 | 0.0045 0.02 0.0218 | 0.0065 0.02 0.0218 | 0.0085 0.02 0.0218 | 0.011 0.02 0.0218
pixelate          0.6 | 0.5 | 0.4 | 0.3 | 0.25
jpeg_compression  25 | 18 | 15 | 10 | 7
"""  # noqa: E501


def _read(table: str) -> dict[str, list[list[float]]]:
    """Return the constants of a table, by corruption and severity."""
    lines = (line.split(maxsplit=1) for line in table.strip().splitlines())
    return {name: [list(map(float, level.split())) for level in levels.split("|")] for name, levels in lines}


SMALL, LARGE = map(_read, (_SMALL, _LARGE))


def constants(name: str, severity: int, size: int) -> tuple[float, ...]:
    """Return the constants of one corruption, interpolated between the tables.

    Args:
        name: One of the 15 corruptions.
        severity: 1 to 5.
        size: Height and width of the images in pixels.
    """
    place = math.log(size / SMALL_SIZE) / math.log(LARGE_SIZE / SMALL_SIZE)
    place = min(max(place, 0.0), 1.0)
    ends = zip(SMALL[name][severity - 1], LARGE[name][severity - 1], strict=True)
    return tuple(round(small ** (1 - place) * large**place, DIGITS) for small, large in ends)
