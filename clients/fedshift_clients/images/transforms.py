"""Transforms of torchvision's v2 with one draw per image of the batch.

torchvision's own draw once per call, so that all images of a batch would share a window and a colour. These
mean the same for each image and are called with a CPU generator, which they return with the images:
``x, rng = transform(x, rng)``. ``v2.Compose`` chains them.

Everywhere x are images (B, 3, H, W), float32 in [0, 1]; results are new tensors.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms import v2  # type: ignore[import-untyped]
from torchvision.tv_tensors import Mask  # type: ignore[import-untyped]

from fedshift_clients.training.settings import ImageConfig

#: What a transform drew for a batch, by name; the first dimension is B, on the CPU.
Draws = dict[str, Tensor]


def compose(config: ImageConfig) -> v2.Compose:
    """Return the configured transforms as one; at least one must be configured."""
    chain: list[PerSample] = []
    if config.resized_crop is not None:
        chain.append(RandomResizedCrop(config.resized_crop))
    if any(config.jitter):
        chain.append(ColorJitter(*config.jitter, p=config.jitter_p))
    if config.grayscale > 0:
        chain.append(RandomGrayscale(config.grayscale))
    return v2.Compose(chain)


class PerSample(v2.Transform):  # type: ignore[misc]
    """A transform that draws for each image of a batch; subclasses say what (``draw``) and apply it."""

    # The generator is listed too, so that make_params gets to see it.
    _transformed_types = (Tensor, torch.Generator)

    def draw(self, shape: torch.Size, rng: torch.Generator) -> Draws:
        """Draw for images of a shape (B, 3, H, W), always the same number of random numbers."""
        raise NotImplementedError

    def apply_to(self, x: Tensor, draws: Draws) -> Tensor:
        """Return the transformed images."""
        raise NotImplementedError

    def apply_to_targets(self, targets: Tensor, draws: Draws) -> Tensor:
        """Return targets (B, H, W), uint8, moved as their images are; colours leave them as they are."""
        return targets

    def make_params(self, flat_inputs: list[Any]) -> Draws:
        """Draw, when v2 asks for it."""
        x, *_, rng = flat_inputs
        return self.draw(x.shape, rng)

    def transform(self, inpt: Any, params: Draws) -> Any:
        """Transform the images and their targets, if any, and pass the generator on, when v2 asks for it."""
        if isinstance(inpt, Mask):
            return Mask(self.apply_to_targets(inpt.as_subclass(Tensor), params))
        return self.apply_to(inpt, params) if isinstance(inpt, Tensor) else inpt


class RandomResizedCrop(PerSample):
    """Stretch a random window to the size of the image, bilinearly.

    Args:
        scale: Area of the window as a share of the image, from and to, at most 1.
        ratio: Width by height of the window, from and to, uniform in its logarithm.
        tries: A window that does not fit is drawn anew, so often at most; then it is the whole image.
    """

    def __init__(
        self, scale: tuple[float, float], ratio: tuple[float, float] = (3 / 4, 4 / 3), tries: int = 10
    ) -> None:
        super().__init__()
        self.scale = scale
        self.ratio = ratio
        self.tries = tries

    def draw(self, shape: torch.Size, rng: torch.Generator) -> Draws:
        """Draw ``top``, ``left``, ``height`` and ``width`` of each window, in pixels, float64 (B,)."""
        b, _, h, w = shape
        u = torch.rand(2, self.tries, b, generator=rng, dtype=torch.float64)
        area = h * w * _between(self.scale, u[0])  # tries x B
        ratio = _between((math.log(self.ratio[0]), math.log(self.ratio[1])), u[1]).exp()
        size = torch.stack(((area / ratio).sqrt(), (area * ratio).sqrt())).round()  # 2 x tries x B
        image = torch.tensor([h, w], dtype=torch.float64).view(2, 1, 1)
        fits = ((size >= 1) & (size <= image)).all(dim=0)
        size = torch.cat((size, image.expand(2, 1, b)), dim=1)
        first = torch.cat((fits, fits.new_ones(1, b))).int().argmax(dim=0)  # B; argmax finds the first True
        height, width = size[:, first, torch.arange(b)]
        place = torch.rand(2, b, generator=rng, dtype=torch.float64)
        top, left = (place[0] * (h - height + 1)).floor(), (place[1] * (w - width + 1)).floor()
        return {"top": top, "left": left, "height": height, "width": width}

    def apply_to_targets(self, targets: Tensor, draws: Draws) -> Tensor:
        """Cut and stretch each window; a pixel has the value of the nearest one, so that no classes are mixed."""
        return self._stretched(targets[:, None].float(), draws, "nearest")[:, 0].to(targets.dtype)

    def apply_to(self, x: Tensor, draws: Draws) -> Tensor:
        """Cut and stretch each window."""
        return self._stretched(x, draws, "bilinear")

    @staticmethod
    def _stretched(x: Tensor, draws: Draws, mode: str) -> Tensor:
        b, _, h, w = x.shape
        rows = _sources(draws["top"], draws["height"], h).to(x)  # B x H
        columns = _sources(draws["left"], draws["width"], w).to(x)  # B x W
        grid = torch.stack((columns[:, None, :].expand(b, h, w), rows[:, :, None].expand(b, h, w)), dim=3)
        return F.grid_sample(x, grid, mode=mode, padding_mode="border", align_corners=False)


class ColorJitter(PerSample):
    """Change brightness, contrast, saturation and hue, in an order that is random for each image.

    Args:
        brightness: Factors are uniform in 1 - brightness .. 1 + brightness, not below 0; 0 is off.
        contrast: Likewise.
        saturation: Likewise.
        hue: Turns are uniform in -hue .. hue of the colour circle, at most 0.5; 0 is off.
        p: Probability that an image is changed at all.
    """

    def __init__(self, brightness: float, contrast: float, saturation: float, hue: float, p: float) -> None:
        super().__init__()
        ranges = [(max(0.0, 1.0 - s), 1.0 + s) for s in (brightness, contrast, saturation)] + [(-hue, hue)]
        self.low, self.high = torch.tensor(ranges).unbind(dim=1)
        self.active = [i for i, (low, high) in enumerate(ranges) if low < high]
        self.p = p

    def draw(self, shape: torch.Size, rng: torch.Generator) -> Draws:
        """Draw which images change (``chosen``, (B,)), ``factors`` (B, 4) and ``order`` (B, 4) of ADJUSTMENTS."""
        b = shape[0]
        chosen = torch.rand(b, generator=rng) < self.p
        factors = torch.lerp(self.low, self.high, torch.rand(b, 4, generator=rng))
        order = torch.rand(b, 4, generator=rng).argsort(dim=1, stable=True)
        return {"chosen": chosen, "factors": factors, "order": order}

    def apply_to(self, x: Tensor, draws: Draws) -> Tensor:
        """Adjust the chosen images, each in its order."""
        x = x.clone()
        for now in draws["order"].unbind(dim=1):
            for i in self.active:
                samples = torch.nonzero(draws["chosen"] & (now == i)).flatten()
                factor = draws["factors"][samples, i].view(-1, 1, 1, 1).to(x.device)
                at = samples.to(x.device)
                x.index_copy_(0, at, ADJUSTMENTS[i](x.index_select(0, at), factor))
        return x


class RandomGrayscale(PerSample):
    """Take the colour out of an image with probability p."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def draw(self, shape: torch.Size, rng: torch.Generator) -> Draws:
        """Draw which images change (``chosen``, (B,))."""
        return {"chosen": torch.rand(shape[0], generator=rng) < self.p}

    def apply_to(self, x: Tensor, draws: Draws) -> Tensor:
        """Set the three channels of the chosen images to their gray value."""
        at = torch.nonzero(draws["chosen"]).flatten().to(x.device)
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
