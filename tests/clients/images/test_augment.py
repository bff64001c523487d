"""Cropping, flipping and normalising: as they were first written, bit for bit."""

from typing import Any

import numpy as np
import pytest
import torch
from support import rng
from torch import Tensor

from fedshift_clients.images.augment import Pipeline, draw_moves
from fedshift_clients.training.settings import ImageConfig


def images(b: int, h: int = 6, w: int = 5, seed: int = 0) -> Tensor:
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
    return draw_moves(len(x), ImageConfig(**given), generator).apply_to(x)


@pytest.mark.parametrize(("b", "h", "w", "padding"), [(1, 1, 1, 1), (7, 6, 5, 2), (5, 8, 8, 16)])
def test_crop_repeats_the_windows_of_earlier_runs(b: int, h: int, w: int, padding: int) -> None:
    x, new, old = images(b, h, w), rng(3), rng(3)
    out = moved(x, new, crop_padding=padding)
    assert out.is_contiguous() and torch.equal(out, crop_as_first_written(x, padding, old))
    assert torch.equal(new.get_state(), old.get_state())


def test_flip_repeats_the_choices_of_earlier_runs() -> None:
    x, new, old = images(64, 8, 8), rng(3), rng(3)
    flip = torch.rand(64, generator=old) < 0.5
    assert torch.equal(moved(x, new, flip=True), torch.where(flip[:, None, None, None], x.flip(2), x))
    assert torch.equal(new.get_state(), old.get_state())


def test_to_float_is_the_textbook_form_to_the_last_digits() -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    x = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).repeat(2, 1, 1, 3)  # every value in every channel
    wanted = ((x.double() / 255.0 - torch.tensor(mean)) / torch.tensor(std)).permute(0, 3, 1, 2).float()
    found = Pipeline(ImageConfig(mean=mean, std=std), torch.device("cpu")).plain(x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
