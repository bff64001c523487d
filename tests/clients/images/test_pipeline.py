"""From uint8 to what the network sees: the configured steps, their random numbers, two views."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from support import rng
from torch import Tensor

from fedshift_clients.images import augment, transforms
from fedshift_clients.images.augment import Pipeline
from fedshift_clients.training.settings import ImageConfig

CPU = torch.device("cpu")
#: What FedICON trains with, and each of its parts alone.
FULL: dict[str, Any] = {
    "crop_padding": 2, "flip": True, "resized_crop": (0.5, 1.0), "jitter": (0.4, 0.4, 0.4, 0.1), "grayscale": 0.2,
}  # fmt: skip
CONFIGS: list[dict[str, Any]] = [{}, {"crop_padding": 2, "flip": True}, FULL, *({key: FULL[key]} for key in FULL)]
configs = pytest.mark.parametrize("given", CONFIGS, ids=str)
MOMENTS = [torch.tensor(part).view(3, 1, 1) for part in (ImageConfig().mean, ImageConfig().std)]


def images(b: int = 16, size: int = 12, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (b, size, size, 3), dtype=np.uint8))


def pipeline(**given: Any) -> Pipeline:
    return Pipeline(ImageConfig(**given), CPU)


# --- what comes out --------------------------------------------------------------------------------


@configs
@pytest.mark.parametrize("b", [1, 5])
def test_result_is_float32_channels_last_and_in_the_range_of_the_images(given: dict[str, Any], b: int) -> None:
    x, made = images(b), pipeline(**given)
    kept = x.clone()
    lowest, highest = made.plain(torch.zeros_like(x)), made.plain(torch.full_like(x, 255))
    for out in (made.train(x, rng()), made.plain(x)):
        assert (out.shape, out.dtype, out.stride()) == ((b, 3, 12, 12), torch.float32, (12 * 12 * 3, 1, 12 * 3, 3))
        assert ((out >= lowest) & (out <= highest)).all()
    assert torch.equal(x, kept)


def test_full_chain_is_its_steps_one_after_the_other() -> None:
    x, generator = images(), rng(9)
    steps = x
    for part in (ImageConfig(crop_padding=2), ImageConfig(flip=True)):
        steps = augment.Moves(len(x), part, generator).apply_to(steps)
    steps = steps.permute(0, 3, 1, 2).contiguous() / 255
    for key in ("resized_crop", "jitter", "grayscale"):
        steps, _ = transforms.transformed(steps, torch.arange(16), ImageConfig(**{key: FULL[key]}), generator)
    found = pipeline(**FULL).train(x, rng(9))
    torch.testing.assert_close(found, (steps - MOMENTS[0]) / MOMENTS[1], rtol=0, atol=1e-5)


# --- random numbers --------------------------------------------------------------------------------


# --- in the client ---------------------------------------------------------------------------------


# --- configuration ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"jitter": (0.4, 0.4, 0.4)}, "jitter"),
        ({"jitter": (0, 0, 0, 0.6)}, "jitter"),
        ({"resized_crop": (0.0, 1.0)}, "resized_crop"),
        ({"resized_crop": (0.9, 0.5)}, "resized_crop"),
        ({"views": 3}, "views"),
    ],
    ids=str,
)
def test_values_outside_their_range_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        ImageConfig(**given)
