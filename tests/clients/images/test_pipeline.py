"""From uint8 to what the network sees: the configured steps, their random numbers, two views."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from support import fedavg, fit, rng, same
from torch import Tensor

from fedshift_clients.images import augment, transforms
from fedshift_clients.images.augment import Pipeline
from fedshift_clients.training.settings import ImageConfig

CPU = torch.device("cpu")
#: What FedICON trains with, and each of its parts alone.
FULL: dict[str, Any] = {
    "crop_padding": 2, "flip": True, "resized_crop": (0.5, 1.0), "jitter": (0.4, 0.4, 0.4, 0.1), "grayscale": 0.2,
}  # fmt: skip
CONFIGS: list[dict[str, Any]] = [{}, {"crop_padding": 2, "flip": True}, FULL] + [
    {key: value} for key, value in FULL.items()
]
configs = pytest.mark.parametrize("given", CONFIGS, ids=lambda given: "+".join(given) or "off")


def images(b: int = 16, size: int = 12, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (b, size, size, 3), dtype=np.uint8))


def pipeline(**given: Any) -> Pipeline:
    return Pipeline(ImageConfig(**given), CPU)


def moments() -> tuple[Tensor, Tensor]:
    config = ImageConfig()
    return torch.tensor(config.mean), torch.tensor(config.std)


# --- what comes out --------------------------------------------------------------------------------


@configs
@pytest.mark.parametrize("b", [1, 5])
def test_result_is_float32_channels_last_and_in_the_range_of_the_images(given: dict[str, Any], b: int) -> None:
    x = images(b)
    kept = x.clone()
    made = pipeline(**given)
    lowest, highest = made.plain(torch.zeros_like(x)), made.plain(torch.full_like(x, 255))
    for out in (made.train(x, rng()), made.plain(x)):
        assert out.shape == (b, 3, 12, 12)
        assert out.dtype == torch.float32
        assert out.stride() == (12 * 12 * 3, 1, 12 * 3, 3)
        assert (out >= lowest).all()
        assert (out <= highest).all()
    assert torch.equal(x, kept)


def test_identity_when_off() -> None:
    x, generator = images(), rng()
    before = generator.get_state()
    mean, std = moments()
    out = pipeline(jitter=(0, 0, 0, 0), jitter_p=1.0).train(x, generator)
    assert torch.equal(generator.get_state(), before)
    assert torch.equal(out, pipeline().plain(x))
    torch.testing.assert_close(out, ((x.float() / 255.0 - mean) / std).permute(0, 3, 1, 2), rtol=0, atol=1e-6)


def test_full_chain_is_its_steps_one_after_the_other() -> None:
    x, generator = images(), rng(9)
    steps = augment.draw_moves(len(x), ImageConfig(crop_padding=2), generator).apply_to(x)
    steps = augment.draw_moves(len(x), ImageConfig(flip=True), generator).apply_to(steps)
    steps = steps.permute(0, 3, 1, 2).contiguous() / 255
    for step in transforms.compose(ImageConfig(**FULL)).transforms:
        steps, _ = step(steps, generator)
    mean, std = (values.view(3, 1, 1) for values in moments())
    torch.testing.assert_close(pipeline(**FULL).train(x, rng(9)), (steps - mean) / std, rtol=0, atol=1e-5)


# --- random numbers --------------------------------------------------------------------------------


@configs
def test_two_views_are_independent(given: dict[str, Any]) -> None:
    x, made = images(), pipeline(**given)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first, second = made.two_views(x, rng(1), rng(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, made.train(x, rng(1)))
    assert torch.equal(second, made.train(x, rng(2)))
    assert torch.equal(first, second) == (not given)
    assert torch.equal(made.two_views(x, rng(1), rng(8))[0], first)
    assert torch.equal(made.two_views(x, rng(8), rng(2))[1], second)


# --- in the client ---------------------------------------------------------------------------------


def test_second_view_changes_nothing_for_a_method_that_ignores_it() -> None:
    (arrays, metrics), (wanted, expected) = (fit(fedavg(images=ImageConfig(**FULL, views=views))) for views in (1, 2))
    assert same(arrays, wanted) and metrics == expected


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
