"""Transforms with a draw per image, against torchvision's functions on one image at a time."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import rng
from torch import Tensor
from torchvision.transforms import v2  # type: ignore[import-untyped]
from torchvision.transforms.v2 import functional  # type: ignore[import-untyped]

from fedshift_clients.images import transforms
from fedshift_clients.images.transforms import ColorJitter, Draws, PerSample, RandomGrayscale, RandomResizedCrop
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


def jitter(p: float = 0.8) -> ColorJitter:
    return ColorJitter(0.4, 0.5, 0.6, 0.2, p=p)


EVERY: list[Callable[[], PerSample]] = [
    lambda: RandomResizedCrop((0.2, 0.9)),
    jitter,
    lambda: RandomGrayscale(0.5),
]
every = pytest.mark.parametrize("make", EVERY, ids=["resized_crop", "jitter", "grayscale"])


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


@pytest.mark.parametrize("i", range(3), ids=["brightness", "contrast", "saturation"])
def test_factor_one_changes_no_bit(i: int) -> None:
    x = images(3)
    assert torch.equal(transforms.ADJUSTMENTS[i](x, torch.ones(3, 1, 1, 1)), x)


def test_hue_by_hand() -> None:
    # A third of the circle turns red into green, green into blue, blue into red; gray stays.
    colours = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0.5]]).T.reshape(1, 3, 1, 4)
    turned = transforms.adjust_hue(colours, torch.full((1, 1, 1, 1), 1 / 3))[0, :, 0].T
    near(turned, torch.tensor([[0, 1.0, 0], [0, 0, 1], [1, 0, 0], [0.5, 0.5, 0.5]]))


def test_gray_is_torchvisions() -> None:
    x = images(2)
    near(transforms.gray(x), functional.rgb_to_grayscale(x, num_output_channels=1))


# --- whole transforms ------------------------------------------------------------------------------


def test_jitter_follows_each_images_factors_and_order() -> None:
    x, generator = images(40), rng(1)
    draws = jitter().draw(x.shape, rng(1))
    out, returned = jitter()(x, generator)
    assert returned is generator
    assert 0 < int(draws["chosen"].sum()) < 40
    for n in range(40):
        wanted = x[n]
        if draws["chosen"][n]:
            for i in draws["order"][n].tolist():
                wanted = SLOW[i](wanted, float(draws["factors"][n, i]))
            near(out[n], wanted)
        else:
            assert torch.equal(out[n], wanted)


def test_jitter_leaves_out_what_has_no_strength() -> None:
    x = images(8)
    draws = ColorJitter(0.0, 0.0, 0.7, 0.0, p=1.0).draw(x.shape, rng())
    out, _ = ColorJitter(0.0, 0.0, 0.7, 0.0, p=1.0)(x, rng())
    assert torch.equal(out, transforms.adjust_saturation(x, draws["factors"][:, 2].view(-1, 1, 1, 1)))


def test_jitter_draws_orders_and_factors_evenly() -> None:
    # 24 orders, 4800 images: 200 each, standard deviation 13.8.
    draws = ColorJitter(0.4, 1.5, 0.6, 0.2, p=1.0).draw(torch.Size((4800, 3, 1, 1)), rng())
    assert draws["chosen"].all()
    counts = Counter(tuple(order) for order in draws["order"].tolist())
    assert len(counts) == 24
    assert 140 < min(counts.values()) <= max(counts.values()) < 260
    for column, (low, high) in zip(draws["factors"].T, [(0.6, 1.4), (0, 2.5), (0.4, 1.6), (-0.2, 0.2)], strict=True):
        assert low <= column.min() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < column.max() <= high
        assert float(column.mean()) == pytest.approx((low + high) / 2, abs=0.03 * (high - low))


def test_grayscale_is_torchvisions_where_chosen_and_nothing_elsewhere() -> None:
    x = images(30)
    chosen = RandomGrayscale(0.4).draw(x.shape, rng(2))["chosen"]
    out, _ = RandomGrayscale(0.4)(x, rng(2))
    assert 0 < int(chosen.sum()) < 30
    near(out[chosen], functional.rgb_to_grayscale(x[chosen], num_output_channels=3))
    assert torch.equal(out[~chosen], x[~chosen])


def windows(draws: Draws) -> list[list[int]]:
    return torch.stack([draws[key] for key in ("top", "left", "height", "width")], dim=1).int().tolist()


@pytest.mark.parametrize(("h", "w"), [(12, 12), (32, 32), (9, 20)])
@pytest.mark.parametrize("scale", [(0.02, 0.1), (0.5, 1.0), (1.0, 1.0)])
def test_resized_crop_is_torchvisions_of_each_window(h: int, w: int, scale: tuple[float, float]) -> None:
    x = images(20, h, w)
    places = windows(RandomResizedCrop(scale).draw(x.shape, rng(3)))
    out, _ = RandomResizedCrop(scale)(x, rng(3))
    assert out.shape == x.shape
    for image, place, cut in zip(x, places, out, strict=True):
        torch.testing.assert_close(cut, functional.resized_crop(image, *place, [h, w]), rtol=0, atol=2e-5)


@given(
    low=st.floats(0.01, 1), high=st.floats(0.01, 1), h=st.integers(1, 40), w=st.integers(1, 40), seed=st.integers(0, 99)
)
def test_windows_lie_inside_the_image(low: float, high: float, h: int, w: int, seed: int) -> None:
    crop = RandomResizedCrop((min(low, high), max(low, high)))
    for top, left, height, width in windows(crop.draw(torch.Size((5, 3, h, w)), rng(seed))):
        assert 0 <= top < top + height <= h
        assert 0 <= left < left + width <= w


def test_windows_are_distributed_as_torchvisions() -> None:
    scale, ratio, n = (0.3, 1.0), (3 / 4, 4 / 3), 2000
    drawn = torch.tensor(windows(RandomResizedCrop(scale, ratio).draw(torch.Size((n, 3, 64, 64)), rng())))
    torch.manual_seed(0)
    theirs = v2.RandomResizedCrop(64, scale=scale, ratio=ratio)
    keys = ("top", "left", "height", "width")
    slow = torch.tensor([[theirs.make_params([torch.zeros(3, 64, 64)])[key] for key in keys] for _ in range(n)])
    # Standard deviations are about 6 to 10 pixels: of a mean over 2000, below 0.25.
    torch.testing.assert_close(drawn.double().mean(0), slow.double().mean(0), rtol=0, atol=1.0)
    torch.testing.assert_close(drawn.double().std(0), slow.double().std(0), rtol=0, atol=1.0)


def test_window_that_never_fits_is_the_whole_image() -> None:
    # Twice as wide as high and of the whole area: fits into no square.
    draws = RandomResizedCrop((1.0, 1.0), (2.0, 2.0)).draw(torch.Size((3, 3, 16, 16)), rng())
    assert windows(draws) == [[0, 0, 16, 16]] * 3


# --- what all have in common -----------------------------------------------------------------------


@every
def test_samples_get_draws_of_their_own(make: Callable[[], PerSample]) -> None:
    x = images(1).expand(64, -1, -1, -1)
    out, _ = make()(x, rng())
    different = len({image.numpy().tobytes() for image in out})
    assert different == 2 if isinstance(make(), RandomGrayscale) else different > 40


@every
def test_random_numbers_come_from_the_generator_alone(make: Callable[[], PerSample]) -> None:
    x = images(16)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, _ = make()(x, rng(5))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    transform, running = make(), rng(5)
    assert torch.equal(transform(x, running)[0], first)
    assert not torch.equal(transform(x, running)[0], first)
    assert not torch.equal(make()(x, rng(6))[0], first)


@every
def test_as_many_numbers_are_drawn_whatever_comes_of_them(make: Callable[[], PerSample]) -> None:
    states = []
    for p in (0.0, 1.0):
        transform: Any = make()
        if isinstance(transform, RandomResizedCrop):
            transform.scale = (p or 0.01, 1.0)
        transform.p = p
        generator = rng()
        transform.draw(torch.Size((9, 3, 8, 8)), generator)
        states.append(generator.get_state())
    assert torch.equal(*states)


@every
def test_input_is_left_alone_and_values_stay_in_range(make: Callable[[], PerSample]) -> None:
    x = images(32)
    kept = x.clone()
    out, _ = make()(x, rng())
    assert torch.equal(x, kept)
    assert out.shape == x.shape
    assert out.dtype == torch.float32
    assert out.min() >= 0
    assert out.max() <= 1


@pytest.mark.parametrize("make", [jitter, RandomGrayscale], ids=["jitter", "grayscale"])
@pytest.mark.parametrize("p", [0.0, 0.3, 0.8, 1.0])
def test_share_of_changed_images_is_p(make: Callable[[float], PerSample], p: float) -> None:
    # 1000 images: standard deviation at most 15.8.
    x = images(1, 5, 5).expand(1000, -1, -1, -1)
    out, _ = make(p)(x, rng())
    changed = int((out != x).flatten(1).any(dim=1).sum())
    assert abs(changed - 1000 * p) <= (0 if p in (0, 1) else 64)


def test_compose_takes_what_is_configured_in_a_fixed_order() -> None:
    config = ImageConfig(resized_crop=(0.5, 1.0), jitter=(0.4, 0.4, 0.4, 0.1), jitter_p=0.7, grayscale=0.2)
    chain = transforms.compose(config).transforms
    assert [type(step) for step in chain] == [RandomResizedCrop, ColorJitter, RandomGrayscale]
    assert (chain[0].scale, chain[1].p, chain[2].p) == ((0.5, 1.0), 0.7, 0.2)
    x, generator = images(6), rng()
    out, _ = transforms.compose(config)(x, rng())
    for step in chain:
        x, generator = step(x, generator)
    assert torch.equal(out, x)
