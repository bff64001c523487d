"""Transforms with a draw per image, against torchvision's functions on one image at a time."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support import rng
from torch import Tensor
from torchvision.transforms.v2 import functional  # type: ignore[import-untyped]

from fedshift_clients.images import transforms
from fedshift_clients.images.augment import Moves, Pipeline
from fedshift_clients.training.settings import ImageConfig

#: torchvision's counterparts of transforms.ADJUSTMENTS.
SLOW: tuple[Callable[[Tensor, float], Tensor], ...] = (
    functional.adjust_brightness,
    functional.adjust_contrast,
    functional.adjust_saturation,
    functional.adjust_hue,
)
#: Factors at and beyond the usual ends, by adjustment.
FACTORS = ([0.0, 0.3, 1.0, 1.4, 3.0], [0.0, 0.5, 1.0, 1.8], [0.0, 0.2, 1.0, 2.5], [-0.5, -0.1, 0.0, 0.07, 0.5])


def images(b: int, h: int = 12, w: int = 12, seed: int = 0) -> Tensor:
    """Images (b, 3, h, w) with every kind of hue: grays, black, white, and ties of the largest channel."""
    x = torch.rand(b, 3, h, w, generator=rng(seed))
    x[:, :, 0] = x[:, :1, 0]  # gray
    x[:, :, 1, :4], x[:, :, 1, 4:] = 0.0, 1.0
    x[:, 1, 2] = x[:, 0, 2]
    x[:, 2, 3] = x[:, 1, 3]
    x[:, 2, 4] = x[:, 0, 4]
    return x


def near(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=2e-6)


STRENGTHS = (0.4, 0.5, 0.6, 0.2)
SHAPE = torch.Size((9, 3, 8, 8))
#: Draws, with two settings of which other things come.
EVERY: list[Callable[[torch.Generator, bool], Any]] = [
    lambda rng, all_of_it: transforms.draw_windows(SHAPE, (1.0 if all_of_it else 0.01, 1.0), rng),
    lambda rng, all_of_it: transforms.jittered(images(9), STRENGTHS, float(all_of_it), rng),
    lambda rng, all_of_it: transforms.grayscaled(images(9), float(all_of_it), rng),
]


@pytest.mark.parametrize("draw", EVERY)
def test_as_many_numbers_are_drawn_whatever_comes_of_them(draw: Callable[[torch.Generator, bool], Any]) -> None:
    states = []
    for all_of_it in (False, True):
        generator = rng()
        draw(generator, all_of_it)
        states.append(generator.get_state())
    assert torch.equal(*states)


# --- the maths of one image ------------------------------------------------------------------------


@pytest.mark.parametrize("i", range(4), ids=["brightness", "contrast", "saturation", "hue"])
def test_adjustment_is_torchvisions_for_each_image(i: int) -> None:
    factors = FACTORS[i]
    x = images(len(factors))
    out = transforms.ADJUSTMENTS[i](x, torch.tensor(factors).view(-1, 1, 1, 1))
    for image, factor, changed in zip(x, factors, out, strict=True):
        near(changed, SLOW[i](image, factor))
    assert out.min() >= 0
    assert out.max() <= 1


# --- whole transforms ------------------------------------------------------------------------------


def test_jitter_follows_each_images_factors_and_order() -> None:
    x = images(40)
    chosen, factors, order = transforms.draw_jitter(40, STRENGTHS, 0.8, rng(1))
    out = transforms.jittered(x, STRENGTHS, 0.8, rng(1))
    assert 0 < int(chosen.sum()) < 40
    for n, wanted in enumerate(x):
        if chosen[n]:
            for i in order[n].tolist():
                wanted = SLOW[i](wanted, float(factors[n, i]))
            near(out[n], wanted)
        else:
            assert torch.equal(out[n], wanted)


def test_grayscale_is_torchvisions_where_chosen_and_nothing_elsewhere() -> None:
    x = images(30)
    chosen = torch.rand(30, generator=rng(2)) < 0.4
    out = transforms.grayscaled(x, 0.4, rng(2))
    assert 0 < int(chosen.sum()) < 30
    near(out[chosen], functional.rgb_to_grayscale(x[chosen], num_output_channels=3))
    assert torch.equal(out[~chosen], x[~chosen])


@pytest.mark.parametrize(("h", "w"), [(12, 12), (9, 20)])
@pytest.mark.parametrize("scale", [(0.02, 0.1), (0.5, 1.0)])
def test_resized_crop_is_torchvisions_of_each_window(h: int, w: int, scale: tuple[float, float]) -> None:
    x = images(20, h, w)
    windows = transforms.draw_windows(x.shape, scale, rng(3))
    out = transforms.stretched(x, windows)
    for image, place, cut in zip(x, windows.T.int().tolist(), out, strict=True):
        torch.testing.assert_close(cut, functional.resized_crop(image, *place, [h, w]), rtol=0, atol=2e-5)


def test_window_that_never_fits_is_the_whole_image() -> None:
    # Twice as wide as high and of the whole area: fits into no square.
    windows = transforms.draw_windows(torch.Size((3, 3, 16, 16)), (1.0, 1.0), rng(0), ratio=(2.0, 2.0))
    assert windows.T.tolist() == [[0, 0, 16, 16]] * 3


# --- what all have in common -----------------------------------------------------------------------


# --- crop, flip, to float -----------------------------------------------------------------------------------


def noise_images(b: int, h: int = 6, w: int = 5, seed: int = 0) -> Tensor:
    """Pixels from 1 to 255, so that the zeros of the padding stand out."""
    x = np.random.default_rng(seed).integers(1, 256, size=(b, h, w, 3), dtype=np.uint8)
    return torch.from_numpy(x)


# --- as ever ---------------------------------------------------------------------------------------


def crop_as_first_written(x: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    b, h, w, _ = x.shape
    padded = torch.nn.functional.pad(x, (0, 0, padding, padding, padding, padding))
    top, left = torch.randint(0, 2 * padding + 1, (2, b), generator=generator)
    rows = top[:, None] + torch.arange(h)
    columns = left[:, None] + torch.arange(w)
    return padded[torch.arange(b)[:, None, None], rows[:, :, None], columns[:, None, :]]


def moved(x: Tensor, generator: torch.Generator, **given: Any) -> Tensor:
    return Moves(len(x), ImageConfig(**given), generator).apply_to(x)


@pytest.mark.parametrize(("b", "h", "w", "padding"), [(1, 1, 1, 1), (7, 6, 5, 2), (5, 8, 8, 16)])
def test_crop_repeats_the_windows_of_earlier_runs(b: int, h: int, w: int, padding: int) -> None:
    x, new, old = noise_images(b, h, w), rng(3), rng(3)
    out = moved(x, new, crop_padding=padding)
    assert out.is_contiguous() and torch.equal(out, crop_as_first_written(x, padding, old))
    assert torch.equal(new.get_state(), old.get_state())


def test_flip_repeats_the_choices_of_earlier_runs() -> None:
    x, new, old = noise_images(64, 8, 8), rng(3), rng(3)
    flip = torch.rand(64, generator=old) < 0.5
    assert torch.equal(moved(x, new, flip=True), torch.where(flip[:, None, None, None], x.flip(2), x))
    assert torch.equal(new.get_state(), old.get_state())


def test_to_float_is_the_textbook_form_to_the_last_digits() -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    x = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).repeat(2, 1, 1, 3)  # every value in every channel
    wanted = ((x.double() / 255.0 - torch.tensor(mean)) / torch.tensor(std)).permute(0, 3, 1, 2).float()
    found = Pipeline(ImageConfig(mean=mean, std=std), torch.device("cpu")).plain(x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
