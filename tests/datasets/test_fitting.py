"""Images of any shape into squares, values of any range into 8 bits: against torchvision and against NumPy."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from digit_files import noise
from PIL import Image
from torchvision.transforms.v2 import functional

from fedshift_datasets.io import resize
from fedshift_datasets.io.resize import fit, levels

SHAPES = [(40, 30), (30, 40), (17, 61), (500, 33), (9, 8), (8, 9), (5, 5), (32, 32), (1, 7)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [16, 32])
def test_crop_and_squash_are_torchvisions(shape: tuple[int, int], size: int) -> None:
    image = Image.fromarray(noise(*shape, 3))
    assert np.array_equal(fit(image, size, "squash"), functional.resize(image, [size, size]))
    wanted = functional.center_crop(functional.resize(image, [size]), [size])
    # Pillow rounds in between, and which direction goes first depends on the shapes.
    assert np.abs(np.asarray(fit(image, size, "crop"), int) - np.asarray(wanted, int)).max() <= 1


@pytest.mark.parametrize(("shape", "inner"), [((40, 30), (16, 12)), ((30, 40), (12, 16)), ((90, 1), (16, 1))])
def test_pad_keeps_the_shape_and_centres_it_on_black(shape: tuple[int, int], inner: tuple[int, int]) -> None:
    pixels = noise(*shape, 3) // 2 + 100  # nothing black
    padded = np.asarray(fit(Image.fromarray(pixels), 16, "pad"))
    rows, columns = (np.flatnonzero(padded.any(axis=(axis, 2))) for axis in (1, 0))
    assert (len(rows), len(columns)) == inner
    assert (rows[0], columns[0]) == tuple((16 - side) // 2 for side in inner)
    wanted = functional.resize(Image.fromarray(pixels), list(inner))
    assert np.array_equal(padded[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1], wanted)


def test_a_long_strip_does_not_fill_the_memory() -> None:
    strip = Image.fromarray(noise(200_000, 1, 3))
    tracemalloc.start()
    fitted = np.stack([fit(strip, 224, how) for how in ("crop", "pad", "squash")])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert fitted.shape == (3, 224, 224, 3) and peak < 20 << 20
    assert np.ptp(fitted[0], axis=(0, 1)).max() > 0  # a window of it, not one value


@pytest.mark.parametrize("how", ["crop", "pad", "squash"])
@pytest.mark.parametrize("channels", [(), (1,), (3,)])
def test_arrays_are_fitted_as_files_are(how: Any, channels: tuple[int, ...]) -> None:
    x = noise(3, 40, 30, *channels)
    images = [Image.fromarray(image.squeeze()).convert("RGB") for image in x]
    result, wanted = resize.resize(x, 16, how), np.stack([fit(image, 16, how) for image in images])
    assert np.array_equal(result, resize.resize(np.stack(images), 16, how))
    assert np.abs(result.astype(int) - wanted).max() <= (how == "squash")  # which torch and Pillow round apart


def test_levels_are_linear_between_the_ends_and_rounded() -> None:
    values = np.arange(-50, 350)
    wanted = [round(255 * min(max((value + 10) / 200, 0), 1)) for value in values.tolist()]
    assert levels(values, -10, 190).tolist() == wanted
    every = np.arange(1 << 16)
    assert levels(every, 0, 65535).tolist() == [round(value / 257) for value in every.tolist()]
    assert levels(np.array([2, 3, 4]), 3, 3).tolist() == [0, 0, 255]
