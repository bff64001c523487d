"""Turns images of any shape into squares, and values of any range into 8 bits."""

import numpy as np
from PIL import Image

from fedshift_datasets.arrays import Numbers, Pixels
from fedshift_datasets.base import Resize
from fedshift_datasets.listing import IGNORED, ImageSet, main_class

_WHITE = 255
_CHUNK = 1 << 24  # input or output values of one call of resize


def fit(image: Image.Image, size: int, resize: Resize) -> Image.Image:
    """Return an image as a square: bilinear with antialias, as torchvision's Resize on PIL images.

    Crop equals its Resize and CenterCrop, to one grey level.

    Args:
        image: The image, or a mask (mode L): its pixels are of the nearest, and those of no image :data:`IGNORED`.
        size: Height and width of the result in pixels.
        resize: As in :class:`~fedshift_datasets.base.Form`; all three treat a square image alike.
    """
    width, height = image.size
    if (width, height) == (size, size):
        return image
    how = Image.Resampling.NEAREST if image.mode == "L" else Image.Resampling.BILINEAR
    if resize == "crop":
        return image.resize((size, size), how, box=_middle(width, height, size))
    if resize == "pad" and width != height:
        inner = _inside(width, height, size)
        empty = Image.new(image.mode, (size, size), IGNORED if image.mode == "L" else 0)
        corner = (size - inner[0]) // 2, (size - inner[1]) // 2
        empty.paste(image.resize(inner, how), corner)
        return empty
    return image.resize((size, size), how)


def rgb(x: Pixels) -> Pixels:
    """Return images as (N, H, W, 3); grey ones as a read-only view."""
    x = x[..., np.newaxis] if x.ndim == 3 else x
    return np.broadcast_to(x, (*x.shape[:3], 3))


def resize(x: Pixels, size: int, how: Resize = "squash") -> Pixels:
    """Return images as RGB squares: bilinear with antialias, unchanged if the size is right.

    Args:
        x: Images, shape (N, H, W), (N, H, W, 1) or (N, H, W, 3), N, H and W above 0.
        size: Height and width of the result in pixels.
        how: As in :class:`~fedshift_datasets.base.Form`.

    Returns:
        Images of shape (N, size, size, 3); each depends on its own pixels alone.
    """
    x = x[..., np.newaxis] if x.ndim == 3 else x
    count, height, width, channels = x.shape
    if (height, width, channels) == (size, size, 3):
        return x
    if how != "squash" and height != width:
        return np.stack([np.asarray(fit(Image.fromarray(np.ascontiguousarray(each)), size, how)) for each in rgb(x)])
    # Here, because torchvision takes a second to import and images of the right size do not need it.
    import torch
    from torchvision.transforms import InterpolationMode  # type: ignore[import-untyped]
    from torchvision.transforms.v2 import functional  # type: ignore[import-untyped]

    out = np.empty((count, size, size, 3), np.uint8)
    step = max(1, _CHUNK // (max(height * width, size * size) * channels))
    for start in range(0, count, step):
        chunk = torch.tensor(np.ascontiguousarray(x[start : start + step])).permute(0, 3, 1, 2)
        resized = functional.resize(chunk, [size, size], InterpolationMode.BILINEAR, antialias=True)
        out[start : start + step] = resized.permute(0, 2, 3, 1).numpy()  # grey spreads over the three channels
    return out


def resized(images: ImageSet, size: int, how: Resize = "squash") -> ImageSet:
    """Return images by :func:`resize`, with labels, masks by :func:`fit`, and spacing."""
    x = resize(images.x, size, how)
    if images.masks is None:
        return ImageSet(x, images.y)
    height, width = images.masks.shape[1:]
    spacing = None if images.spacing is None else images.spacing * scale(width, height, size, how)
    masks = np.stack([np.asarray(fit(Image.fromarray(mask), size, how)) for mask in images.masks])
    return ImageSet(x, main_class(masks, IGNORED), masks=masks, spacing=spacing)


def back(mask: Pixels, width: int, height: int, resize: Resize) -> Image.Image:
    """Return a mask of the square that an image became (:func:`fit`) as one of the image's own size.

    Args:
        mask: (size, size).
        width: Of the image.
        height: Of the image.
        resize: How it became the square. What was cut off is :data:`IGNORED`.
    """
    square, size, nearest = Image.fromarray(mask), len(mask), Image.Resampling.NEAREST
    if resize == "pad":
        inner = _inside(width, height, size)
        left, top = ((size - side) // 2 for side in inner)
        return square.crop((left, top, left + inner[0], top + inner[1])).resize((width, height), nearest)
    if resize == "crop":
        left, top, right, bottom = map(round, _middle(width, height, size))
        whole = Image.new("L", (width, height), IGNORED)
        whole.paste(square.resize((right - left, bottom - top), nearest), (left, top))
        return whole
    return square.resize((width, height), nearest)


def scale(width: int, height: int, size: int, resize: Resize) -> tuple[float, float]:
    """Return how many pixels of an image become one of the square (:func:`fit`), down and across."""
    if resize == "crop":
        left, top, right, bottom = _middle(width, height, size)
        return (bottom - top) / size, (right - left) / size
    across, down = _inside(width, height, size) if resize == "pad" else (size, size)
    return height / down, width / across


def _inside(width: int, height: int, size: int) -> tuple[int, int]:
    """Return the width and height that an image has in a square that it does not fill."""
    longer = max(width, height)
    return max(1, round(width * size / longer)), max(1, round(height * size / longer))


def _middle(width: int, height: int, size: int) -> tuple[float, float, float, float]:
    """Return the part of an image that remains after Resize and CenterCrop: left, top, right, bottom.

    It refers to the original image: a strip of 1 x 100,000 pixels, first enlarged to 224, would fill the memory.
    """
    shorter = min(width, height)
    scaled = size * width // shorter, size * height // shorter
    left, top = (round((side - size) / 2.0) for side in scaled)
    across, down = width / scaled[0], height / scaled[1]
    return left * across, top * down, (left + size) * across, (top + size) * down


def levels(values: Numbers, low: float, high: float) -> Pixels:
    """Return values as 8 bits: ``low`` and less is 0, ``high`` and more 255, linear between, rounded.

    If both are equal, larger values are 255.
    """
    if low == high:
        return np.where(values > low, np.uint8(_WHITE), np.uint8(0))
    share = (values.astype(np.float64) - low) / (high - low)
    return np.rint(np.clip(share, 0, 1) * _WHITE).astype(np.uint8)
