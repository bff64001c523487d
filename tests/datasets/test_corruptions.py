"""The 15 corruptions: each does what the paper says, more of it with severity, and to each image alone."""

import colorsys
import io
import itertools
import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from refusals import refused
from sklearn.datasets import load_digits

from fedshift_core.errors import ConfigError, DataError
from fedshift_datasets.corruptions import CORRUPTIONS, corrupt, kinds, levels, random_corruption
from fedshift_datasets.corruptions.arrays import Draws, convolved, trailed

Pixels = NDArray[np.uint8]

SEVERITIES = range(1, 6)
SIZES = (28, 32, 64, 128, 224)
WITHOUT_CHANCE = ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression")
#: How many images the growth of a distance is averaged over, by size.
COUNTS = {28: 24, 32: 40, 64: 12, 128: 10, 224: 5}


def digits(count: int, size: int) -> Pixels:
    """Real handwritten digits, light on dark, with a margin."""
    ink = np.pad(load_digits().images[:count], ((0, 0), (1, 1), (1, 1))) * (255 / 16)
    images = ink.astype(np.uint8)[..., None].repeat(3, axis=-1)
    pictures = (Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC) for image in images)
    return np.stack([np.asarray(picture) for picture in pictures])


@cache
def textures(count: int, size: int) -> Pixels:
    """Clouds of colour with the spectrum of photographs (amplitude 1 / frequency), and an edge through the middle."""
    rng = np.random.default_rng(7)
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.fftfreq(size)) + 1 / size
    waves = np.fft.fft2(rng.standard_normal((count, 3, size, size))) / frequency
    field = np.fft.ifft2(waves).real
    field = 0.5 + 0.18 * field / field.std(axis=(2, 3), keepdims=True)
    field[:, :, :, size // 2 :] += 0.2
    result = np.moveaxis(field.clip(0, 1) * 255, 1, -1).astype(np.uint8)
    result.flags.writeable = False  # other tests take the same images
    return result


@cache
def mixture(size: int) -> Pixels:
    """Half digits, half textures."""
    half = COUNTS[size] // 2
    return np.concatenate([digits(half, size), textures(half, size)])


def grey(size: int, value: int, count: int = 4) -> Pixels:
    return np.full((count, size, size, 3), value, np.uint8)


def keys_of(x: Pixels) -> NDArray[np.int64]:
    return np.arange(len(x))


def difference(x: Pixels, y: Pixels) -> Any:
    """Return the root of the mean squared difference of each image."""
    return np.sqrt(np.mean((x.astype(float) - y) ** 2, axis=(1, 2, 3)))


def unlikeness(x: Pixels, y: Pixels) -> list[float]:
    """Return 1 - the correlation of the pixels of each image."""
    return [1 - np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(x, y, strict=True)]


def check_growth(x: Pixels, name: str) -> None:
    # More frost covers the image but darkens it too: squares of differences see the light, a correlation the cover.
    distance = unlikeness if name == "frost" else difference
    grown = [np.mean(distance(x, corrupt(x, name, severity, keys_of(x)))) for severity in SEVERITIES]
    assert all(less < more for less, more in itertools.pairwise([0, *grown])), grown


@pytest.mark.parametrize("sizes", [SIZES[:2], pytest.param(SIZES[2:], marks=pytest.mark.long)])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_distance_grows_with_severity(name: str, sizes: tuple[int, ...]) -> None:
    for size in sizes:
        check_growth(mixture(size), name)


@pytest.mark.parametrize("severities", [(5,), pytest.param((1, 4), marks=pytest.mark.long)])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_image_does_not_depend_on_its_batch_nor_on_its_layout(name: str, severities: tuple[int, ...]) -> None:
    # More images than are worked on at a time, so that the pieces are other ones in another order.
    for (size, count), severity in itertools.product([(28, 115), (40, 58), (128, 9)], severities):
        x = textures(count, size)
        keys = 3 * keys_of(x) + 5
        y = corrupt(x, name, severity, keys)
        for part in (np.random.default_rng(0).permutation(count), [0], [count - 1]):
            assert np.array_equal(corrupt(x[part], name, severity, keys[part]), y[part])
        turned = np.ascontiguousarray(x[:3].T).T
        assert not turned.flags.c_contiguous
        assert np.array_equal(corrupt(turned, name, severity, keys[:3]), y[:3])


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_seed_and_key_choose_the_random_numbers(name: str) -> None:
    x = textures(1, 32).repeat(2, axis=0)
    first, again, other = (corrupt(x, name, 4, np.array([0, 1]), seed=seed) for seed in (0, 0, 1))
    chance = name not in WITHOUT_CHANCE
    assert np.array_equal(first, again)
    assert chance != np.array_equal(first[0], first[1])
    assert chance != np.array_equal(first, other)


@pytest.mark.parametrize("change", [random_corruption, *(partial(corrupt, name=name) for name in CORRUPTIONS)])
def test_severity_0_changes_nothing_and_no_images_give_none(change: Callable[..., Pixels]) -> None:
    x, keys = textures(3, 32), np.arange(3)
    assert np.array_equal(change(x, severity=0, keys=keys), x)
    assert change(x[:0], severity=3, keys=keys[:0]).shape == (0, 32, 32, 3)


# Random corruptions.


def test_random_corruption_is_one_of_the_15_for_each_image() -> None:
    x = textures(1, 32).repeat(150, axis=0)
    y = random_corruption(x, 5, keys_of(x), seed=3)
    all_ways = np.stack([corrupt(x, name, 5, keys_of(x), seed=3) for name in CORRUPTIONS])
    same = (all_ways == y).all(axis=(2, 3, 4))
    assert np.all(same.sum(axis=0) == 1)
    assert np.all(same.sum(axis=1) > 0)
    # 150 images, 15 ways: 10 each, with a deviation of 3.06.
    assert same.sum(axis=1).max() <= 22


# What is not allowed.


@pytest.mark.parametrize(
    ("error", "named", "key", "value"),
    [
        (ConfigError, "rain gaussian_noise jpeg_compression", "name", "rain"),
        (ConfigError, "severity -1", "severity", -1),
        (ConfigError, "severity 6", "severity", 6),
        (DataError, "27 28 224", "x", grey(27, 0)),
        (DataError, "225 28 224", "x", grey(225, 0)),
        (DataError, "32 31", "x", grey(32, 0)[:, :, 1:]),
        (DataError, "32 1", "x", grey(32, 0)[..., 1:2]),
        (DataError, "float32 uint8", "x", np.zeros((2, 32, 32, 3), np.float32)),
    ],
)
def test_what_cannot_be_corrupted_is_refused(error: type[Exception], named: str, key: str, value: Any) -> None:
    given: dict[str, Any] = {"x": textures(2, 32), "severity": 3, "keys": np.arange(2), key: value}
    with refused(error, *named.split()):
        corrupt(**{"name": "fog"} | given)
    if key != "name":
        with refused(error, *named.split()):
            random_corruption(**given)


# Constants.


def test_constants_are_the_papers_at_32_and_224_and_between_them_elsewhere() -> None:
    for table in (levels.SMALL, levels.LARGE):
        assert tuple(table) == CORRUPTIONS and {len(rows) for rows in table.values()} == {5}
    assert levels.constants("shot_noise", 5, 32) == levels.constants("shot_noise", 5, 28) == (50,)
    assert levels.constants("shot_noise", 5, 224) == (3,)
    # Halfway on a logarithmic scale: sqrt(32 * 224) = 84.66 pixels, sqrt(50 * 3) = 12.25 photons.
    assert levels.constants("shot_noise", 5, 85)[0] == pytest.approx(12.25, rel=0.01)
    # What both ends share stays as it is: a turn more or less would not be the same glass.
    assert all(levels.constants("glass_blur", 5, size)[2] == 2 for size in range(28, 225))


# Each corruption does what its paper says.


def test_noise_has_the_deviation_of_its_distribution() -> None:
    # A fifth of white, of 50 photons: 10 on average, with a deviation of sqrt(10), in units of 255 / 50.
    of_gauss = 255 * levels.constants("gaussian_noise", 1, 32)[0]
    for name, severity, value, deviation in (
        ("shot_noise", 5, 51, math.sqrt(10) * 255 / 50),
        ("gaussian_noise", 1, 128, of_gauss),
    ):
        x = grey(32, value, count=40)
        y = corrupt(x, name, severity, keys_of(x)).astype(float)
        assert (y.mean(), y.std()) == (pytest.approx(value, rel=0.01), pytest.approx(deviation, rel=0.02))


def test_impulse_noise_strikes_its_share_black_and_white() -> None:
    x = grey(32, 128, count=60)
    values, counts = np.unique(corrupt(x, "impulse_noise", 5, keys_of(x)), return_counts=True)
    assert values.tolist() == [0, 128, 255]
    assert counts / x.size == pytest.approx([0.035, 0.93, 0.035], rel=0.05)


def test_disk_is_round_and_keeps_light() -> None:
    kernel = kinds._disk(3.0, 0.5)
    assert kernel.sum() == pytest.approx(1, abs=1e-6)
    assert np.allclose(kernel, kernel.T) and np.allclose(kernel, kernel[::-1])
    # The disk has a radius of 3 pixels, so its middle has about 1 / (9 pi) of the light.
    assert kernel[4, 4] == pytest.approx(1 / (9 * math.pi), rel=0.02)
    image = np.zeros((1, 32, 32, 1), np.float32)
    image[0, 16, 16] = 1
    assert np.allclose(convolved(image, kernel)[0, 12:21, 12:21, 0], kernel)


@pytest.mark.parametrize(("delta", "turns"), [(1.0, 2.0), (2.0, 1.0), (4.0, 2.0)])
def test_glass_moves_pixels_as_the_papers_loop_does(delta: float, turns: float) -> None:
    size, reach = 28, int(delta)
    inner = size - 2 * reach
    places = kinds._shuffled(size, delta, turns, Draws(0, "test", np.arange(3)))
    # The same random numbers, one pixel after the other.
    moves = np.floor(Draws(0, "test", np.arange(3)).uniform(-delta, delta, int(turns), inner, inner, 2)).astype(int)
    for image in range(3):
        expected = np.arange(image * size * size, (image + 1) * size * size).reshape(size, size)
        for turn in range(int(turns)):
            for row in range(size - reach, reach, -1):
                for column in range(size - reach, reach, -1):
                    down, right = moves[image, turn, row - reach - 1, column - reach - 1]
                    expected[row, column] = expected[row + down, column + right]
        assert np.array_equal(places[image], expected)


def test_motion_draws_a_fading_line() -> None:
    image = np.zeros((2, 32, 32, 1), np.float32)
    image[:, 16, 16] = 1
    trail = trailed(image, 6, 2.0, np.array([0, 90], np.float32))[..., 0]
    weights = np.exp(-((np.arange(8, -1, -1) / 2.0) ** 2) / 2)
    for line in (trail[0, 16, 8:17], trail[1, 8:17, 16]):
        assert np.allclose(line, weights / weights.sum(), atol=1e-3)
    assert trail.sum(axis=(1, 2)) == pytest.approx(1, abs=1e-5)


def test_brightness_is_the_value_of_hsv() -> None:
    x = textures(1, 32).copy()
    x[0, 0, 0] = 0
    y = corrupt(x, "brightness", 5, keys_of(x))
    for row, column in [(0, 0), (3, 4), (20, 30), (31, 7)]:
        hue, saturation, value = colorsys.rgb_to_hsv(*(x[0, row, column] / 255))
        expected = np.array(colorsys.hsv_to_rgb(hue, saturation, min(value + 0.3, 1))) * 255
        assert np.abs(y[0, row, column] - expected).max() <= 0.51


def test_contrast_draws_each_channel_to_its_mean() -> None:
    x = textures(2, 32)
    mean = x.mean(axis=(1, 2), keepdims=True)
    y = corrupt(x, "contrast", 5, keys_of(x))
    assert np.abs(y - (mean + (x - mean) * 0.15)).max() <= 0.51


def test_jpeg_is_pillows() -> None:
    x = textures(1, 32)
    file = io.BytesIO()
    Image.fromarray(x[0]).save(file, "JPEG", quality=40)
    assert np.array_equal(corrupt(x, "jpeg_compression", 5, keys_of(x))[0], np.asarray(Image.open(file)))
