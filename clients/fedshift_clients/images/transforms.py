"""Random changes of colours and of the window, with one draw per image of the batch.

torchvision's own draw once per call, so that all images of a batch would share a window and a colour. These
mean the same for each image.

Everywhere x are images (B, 3, H, W), float32 in [0, 1]; results are new tensors. What is drawn is on the CPU, always as
many random numbers.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift_clients.training.settings import ImageConfig, Jitter

TRIES = 10  # windows that are drawn for an image; where none fits, it is the whole image


def transformed(x: Tensor, y: Tensor, config: ImageConfig, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return images and targets after what a configuration turns on of these changes, in their order.

    Args:
        x: Images.
        y: Labels (B,), which stay as they are, or those of pixels (B, H, W), uint8, which move with their images.
        config: Says what is on.
        rng: CPU generator of the draws.
    """
    if config.resized_crop is not None:
        windows = draw_windows(x.shape, config.resized_crop, rng)
        x = stretched(x, windows)
        if y.ndim > 1:  # a pixel has the value of the nearest one, so that no classes are mixed
            y = stretched(y[:, None].float(), windows, "nearest")[:, 0].to(y.dtype)
    if any(config.jitter):
        x = jittered(x, config.jitter, config.jitter_p, rng)
    if config.grayscale > 0:
        x = grayscaled(x, config.grayscale, rng)
    return x, y


def draw_windows(
    shape: torch.Size, scale: tuple[float, float], rng: torch.Generator, ratio: tuple[float, float] = (3 / 4, 4 / 3)
) -> Tensor:
    """Draw a window of each image: top, left, height and width in pixels, float64 (4, B).

    Args:
        shape: Of the images, (B, 3, H, W).
        scale: Area of the window as a share of the image, from and to, at most 1.
        rng: CPU generator.
        ratio: Width by height of the window, from and to, uniform in its logarithm.
    """
    b, _, h, w = shape
    u = torch.rand(2, TRIES, b, generator=rng, dtype=torch.float64)
    area = h * w * _between(scale, u[0])  # tries x B
    ratios = _between((math.log(ratio[0]), math.log(ratio[1])), u[1]).exp()
    size = torch.stack(((area / ratios).sqrt(), (area * ratios).sqrt())).round()  # 2 x tries x B
    image = torch.tensor([h, w], dtype=torch.float64).view(2, 1, 1)
    fits = ((size >= 1) & (size <= image)).all(dim=0)
    size = torch.cat((size, image.expand(2, 1, b)), dim=1)
    first = torch.cat((fits, fits.new_ones(1, b))).int().argmax(dim=0)  # B; argmax finds the first True
    size = size[:, first, torch.arange(b)]  # 2 x B
    place = torch.rand(2, b, generator=rng, dtype=torch.float64)
    return torch.cat(((place * (image[:, 0] - size + 1)).floor(), size))


def stretched(x: Tensor, windows: Tensor, mode: str = "bilinear") -> Tensor:
    """Stretch the windows (4, B) of :func:`draw_windows` to the size of the images."""
    b, _, h, w = x.shape
    top, left, height, width = windows
    rows = _sources(top, height, h).to(x)  # B x H
    columns = _sources(left, width, w).to(x)  # B x W
    grid = torch.stack((columns[:, None, :].expand(b, h, w), rows[:, :, None].expand(b, h, w)), dim=3)
    return F.grid_sample(x, grid, mode=mode, padding_mode="border", align_corners=False)


def draw_jitter(number: int, strengths: Jitter, p: float, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw which of so many images change, (B,), with which factors, and in which order of ADJUSTMENTS, (B, 4).

    Args:
        number: B.
        strengths: Of brightness, contrast and saturation, whose factors are uniform in 1 - strength .. 1 + strength,
            not below 0; of hue, whose turns are uniform in -strength .. strength of the colour circle, at most 0.5.
        p: Probability that an image is changed at all.
        rng: CPU generator.
    """
    *others, hue = strengths
    ranges = [(max(0.0, 1.0 - s), 1.0 + s) for s in others] + [(-hue, hue)]
    low, high = torch.tensor(ranges).unbind(dim=1)
    chosen = torch.rand(number, generator=rng) < p
    factors = torch.lerp(low, high, torch.rand(number, 4, generator=rng))
    order = torch.rand(number, 4, generator=rng).argsort(dim=1, stable=True)
    return chosen, factors, order


def jittered(x: Tensor, strengths: Jitter, p: float, rng: torch.Generator) -> Tensor:
    """Change brightness, contrast, saturation and hue, as :func:`draw_jitter` draws; a strength of 0 is off."""
    chosen, factors, order = draw_jitter(len(x), strengths, p, rng)
    x = x.clone()
    for now in order.unbind(dim=1):
        for i, adjust in enumerate(ADJUSTMENTS):
            if strengths[i] > 0:
                samples = torch.nonzero(chosen & (now == i)).flatten()
                factor = factors[samples, i].view(-1, 1, 1, 1).to(x.device)
                at = samples.to(x.device)
                x.index_copy_(0, at, adjust(x.index_select(0, at), factor))
    return x


def grayscaled(x: Tensor, p: float, rng: torch.Generator) -> Tensor:
    """Set the three channels of an image to its gray value with probability p."""
    at = torch.nonzero(torch.rand(len(x), generator=rng) < p).flatten().to(x.device)
    return x.index_copy(0, at, gray(x.index_select(0, at)).expand(-1, 3, -1, -1))


def gray(x: Tensor) -> Tensor:
    """Return the luma of images as (B, 1, H, W), with torchvision's weights of red, green and blue."""
    r, g, b = x.unbind(dim=1)
    return (0.2989 * r + 0.587 * g + 0.114 * b)[:, None]


def adjust_brightness(x: Tensor, factor: Tensor) -> Tensor:
    """Multiply by the factor (B, 1, 1, 1)."""
    return (x * factor).clamp_(0, 1)


def adjust_contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance from the image's mean gray by the factor (B, 1, 1, 1)."""
    return torch.lerp(gray(x).mean(dim=(1, 2, 3), keepdim=True), x, factor).clamp_(0, 1)


def adjust_saturation(x: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance from the pixel's gray by the factor (B, 1, 1, 1)."""
    return torch.lerp(gray(x), x, factor).clamp_(0, 1)


def adjust_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue in HSV space by a share (B, 1, 1, 1) of the colour circle. Value and chroma stay."""
    r, g, b = x[:, 0:1], x[:, 1:2], x[:, 2:3]
    value = torch.maximum(torch.maximum(r, g), b)
    chroma = value - torch.minimum(torch.minimum(r, g), b)
    safe = torch.where(chroma == 0, 1.0, chroma)  # a gray has no hue: any will do
    hue = torch.where(value == r, (g - b) / safe, torch.where(value == g, 2 + (b - r) / safe, 4 + (r - g) / safe))
    hue = (hue + 6 * turn).remainder_(6)  # in sixths of the circle: red 0, green 2, blue 4
    # How far, as a share of the chroma, each channel lies below the value.
    below = torch.cat((2 - (hue - 3).abs(), (hue - 2).abs() - 1, (hue - 4).abs() - 1), dim=1).clamp_(0, 1)
    return value - chroma * below


#: In the order in which torchvision numbers them.
ADJUSTMENTS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    adjust_brightness,
    adjust_contrast,
    adjust_saturation,
    adjust_hue,
)


def _between(ends: tuple[float, float], u: Tensor) -> Tensor:
    """Map u from [0, 1) to the range between the ends."""
    return ends[0] + (ends[1] - ends[0]) * u


def _sources(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Return where each of ``size`` pixels of the result reads, on grid_sample's scale -1 to 1.

    Args:
        start: First pixel of each window (B,).
        length: Its pixels (B,).
        size: Pixels of the image and of the result.

    Returns:
        Positions (B, size); at the rim of the window its own pixels are repeated, never those outside.
    """
    centre = (torch.arange(size) + 0.5) * (length[:, None] / size) - 0.5
    inside = centre.clamp(min=0).minimum(length[:, None] - 1)
    return (2 * (start[:, None] + inside) + 1) / size - 1
