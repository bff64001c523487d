"""Cropping, flipping and normalising, against slow searches through all possible outcomes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support import rng
from torch import Tensor

from fedshift_clients.images.augment import Pipeline, draw_moves
from fedshift_clients.training.settings import ImageConfig


def images(b: int, h: int = 6, w: int = 5, seed: int = 0) -> Tensor:
    """Pixels from 1 to 255, so that the zeros of the padding stand out."""
    x = np.random.default_rng(seed).integers(1, 256, size=(b, h, w, 3), dtype=np.uint8)
    return torch.from_numpy(x)


def random_crop(x: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    return draw_moves(len(x), ImageConfig(crop_padding=padding), generator).apply_to(x)


def random_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    return draw_moves(len(x), ImageConfig(flip=True), generator).apply_to(x)


def to_float(x: Tensor, mean: tuple[float, float, float], std: tuple[float, float, float]) -> Tensor:
    return Pipeline(ImageConfig(mean=mean, std=std), torch.device("cpu")).plain(x)


def offsets(image: NDArray[np.uint8], window: NDArray[np.uint8], padding: int) -> list[tuple[int, int]]:
    """All (top, left) at which the window is cut from the padded image."""
    h, w, _ = image.shape
    padded = np.zeros((h + 2 * padding, w + 2 * padding, 3), dtype=np.uint8)
    padded[padding : padding + h, padding : padding + w] = image
    return [
        (top, left)
        for top in range(2 * padding + 1)
        for left in range(2 * padding + 1)
        if np.array_equal(padded[top : top + h, left : left + w], window)
    ]


# --- random crop -----------------------------------------------------------------------------------


@given(
    padding=st.integers(1, 4), b=st.integers(1, 5), h=st.integers(1, 7), w=st.integers(1, 7), seed=st.integers(0, 10**6)
)
@settings(max_examples=40)
def test_crop_is_a_window_of_the_padded_image(padding: int, b: int, h: int, w: int, seed: int) -> None:
    x = images(b, h, w, seed)
    cut = random_crop(x, padding, rng(seed))
    assert cut.dtype == torch.uint8
    assert cut.shape == x.shape
    for image, window in zip(x.numpy(), cut.numpy(), strict=True):
        assert offsets(image, window, padding)


def test_crop_reaches_every_window_about_equally_and_each_sample_its_own() -> None:
    # Padding 1: nine windows, 900 samples, 100 each, standard deviation 9.4.
    x = images(900)
    cut = random_crop(x, 1, rng())
    values = [offsets(image, window, 1) for image, window in zip(x.numpy(), cut.numpy(), strict=True)]
    assert all(len(places) == 1 for places in values)
    counts = np.zeros((3, 3), dtype=int)
    for ((top, left),) in values:
        counts[top, left] += 1
    assert counts.min() > 55
    assert counts.max() < 145


def test_crop_without_padding_changes_nothing() -> None:
    x, generator = images(3), rng()
    before = generator.get_state()
    assert random_crop(x, 0, generator) is x
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("padding", [1, 4])
def test_crop_leaves_its_input_alone(padding: int) -> None:
    x = images(4)
    kept = x.clone()
    random_crop(x, padding, rng())
    assert torch.equal(x, kept)


# --- random flip -----------------------------------------------------------------------------------


def test_flip_mirrors_left_to_right_half_of_the_time() -> None:
    # 400 samples: 200 flipped, standard deviation 10.
    x = images(400)
    out = random_flip(x, rng()).numpy()
    flipped = 0
    for before, after in zip(x.numpy(), out, strict=True):
        mirrored = np.array([[row[len(row) - 1 - column] for column in range(len(row))] for row in before])
        assert np.array_equal(after, before) or np.array_equal(after, mirrored)
        flipped += int(np.array_equal(after, mirrored))
    assert 150 < flipped < 250
    assert out.dtype == np.uint8


def test_flip_by_hand() -> None:
    # One row of three pixels, 1 2 3 in every channel.
    x = torch.tensor([1, 2, 3], dtype=torch.uint8).view(1, 1, 3, 1).expand(8, 1, 3, 3).contiguous()
    rows = {tuple(row) for row in random_flip(x, rng())[:, 0, :, 0].tolist()}
    assert rows == {(1, 2, 3), (3, 2, 1)}


# --- where the random numbers come from ------------------------------------------------------------


@pytest.mark.parametrize("name", ["crop", "flip"])
def test_random_numbers_come_from_the_generator_alone(name: str) -> None:
    x = images(64)

    def augmented(generator: torch.Generator) -> Tensor:
        return random_crop(x, 2, generator) if name == "crop" else random_flip(x, generator)

    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = augmented(rng(5))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(augmented(rng(5)), first)
    assert not torch.equal(augmented(rng(6)), first)
    running = rng(5)
    assert torch.equal(augmented(running), first)
    assert not torch.equal(augmented(running), first)  # the generator moves on


# --- normalisation ---------------------------------------------------------------------------------


def test_to_float_by_hand() -> None:
    # Mean 1/2, deviation 1/2: 0 becomes -1 and 255 becomes 1. Mean 0, deviation 2: 255 becomes 1/2.
    x = torch.tensor([[[[0, 255, 255]]]], dtype=torch.uint8)
    out = to_float(x, (0.5, 0.5, 0.0), (0.5, 0.5, 2.0))
    assert out.flatten().tolist() == pytest.approx([-1, 1, 0.5], abs=1e-6)


@pytest.mark.parametrize("b", [1, 3])
def test_to_float_against_loops(b: int) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    x = images(b, 4, 7)
    out = to_float(x, mean, std)
    assert out.shape == (b, 3, 4, 7)
    assert out.dtype == torch.float32
    slow = np.zeros((b, 3, 4, 7))
    for i, c, row, column in np.ndindex(*slow.shape):
        slow[i, c, row, column] = (int(x[i, row, column, c]) / 255 - mean[c]) / std[c]
    np.testing.assert_allclose(out.numpy(), slow, rtol=1e-5, atol=1e-5)


def test_to_float_is_channels_last_in_memory() -> None:
    out = to_float(images(2, 4, 7), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert out.stride() == (4 * 7 * 3, 1, 7 * 3, 3)


# --- as ever ---------------------------------------------------------------------------------------


def crop_as_first_written(x: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    b, h, w, _ = x.shape
    padded = torch.nn.functional.pad(x, (0, 0, padding, padding, padding, padding))
    top, left = torch.randint(0, 2 * padding + 1, (2, b), generator=generator)
    rows = top[:, None] + torch.arange(h)
    columns = left[:, None] + torch.arange(w)
    return padded[torch.arange(b)[:, None, None], rows[:, :, None], columns[:, None, :]]


@pytest.mark.parametrize(("b", "h", "w", "padding"), [(1, 1, 1, 1), (7, 6, 5, 2), (64, 32, 32, 4), (5, 8, 8, 16)])
def test_crop_repeats_the_windows_of_earlier_runs(b: int, h: int, w: int, padding: int) -> None:
    x, new, old = images(b, h, w), rng(3), rng(3)
    out = random_crop(x, padding, new)
    assert torch.equal(out, crop_as_first_written(x, padding, old))
    assert out.is_contiguous()
    assert torch.equal(new.get_state(), old.get_state())


def test_flip_repeats_the_choices_of_earlier_runs() -> None:
    x, new, old = images(64, 8, 8), rng(3), rng(3)
    flip = torch.rand(64, generator=old) < 0.5
    assert torch.equal(random_flip(x, new), torch.where(flip[:, None, None, None], x.flip(2), x))
    assert torch.equal(new.get_state(), old.get_state())


@pytest.mark.parametrize(
    ("mean", "std"), [((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))]
)
def test_to_float_is_the_textbook_form_to_the_last_digits(
    mean: tuple[float, float, float], std: tuple[float, float, float]
) -> None:
    x = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).repeat(2, 1, 1, 3)  # every value in every channel
    m, s = torch.tensor(mean), torch.tensor(std)
    wanted = ((x.double() / 255.0 - m) / s).permute(0, 3, 1, 2).float()
    torch.testing.assert_close(to_float(x, mean, std), wanted, rtol=0, atol=1e-6)


def test_to_float_takes_a_view_and_leaves_it_alone() -> None:
    x = images(3, 6, 6)
    kept, mean, std = x.clone(), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    turned = x.transpose(1, 2)
    assert torch.equal(to_float(turned, mean, std), to_float(turned.contiguous(), mean, std))
    assert torch.equal(x, kept)
