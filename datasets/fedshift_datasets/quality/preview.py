"""Draws contact sheets: a few images of every class and domain, or of every corruption, side by side."""

from collections.abc import Sequence
from itertools import count

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fedshift_core.limits import shortened
from fedshift_datasets.base import ImageSet
from fedshift_datasets.corruptions import CORRUPTIONS, corrupt

FONT_SIZE = 13
#: Height of one line of text in pixels, and the smallest width of a column, whose header is turned.
LINE = 18
PAD = 4
MOST_LETTERS = 16  # of a header or a row
#: Images up to this side are shown twice as large; larger ones are reduced to LARGEST_CELL if necessary.
SMALL_SIDE = 64
LARGEST_CELL = 128
SHOWN = 4  # images of a sheet of corruptions
PAPER = (255, 255, 255)
TEXT = (20, 20, 20)
OUTLINE = (255, 0, 255)


def _label(text: str) -> Image.Image:
    """Draw one line of text, cut to ``MOST_LETTERS``, on a strip that is as wide as the text."""
    font, cut = ImageFont.load_default(FONT_SIZE), shortened(text, MOST_LETTERS)
    strip = Image.new("RGB", (max(1, int(np.ceil(font.getlength(cut)))), LINE), PAPER)
    ImageDraw.Draw(strip).text((0, LINE // 2), cut, fill=TEXT, font=font, anchor="lm")
    return strip


def _shown_size(images: ImageSet) -> tuple[int, int]:
    """Return (width, height) in which images of this set are shown."""
    height, width = images.x.shape[1:3]
    side = max(height, width)
    if side <= SMALL_SIDE:
        return 2 * width, 2 * height
    factor = min(1.0, LARGEST_CELL / side)
    return max(1, round(width * factor)), max(1, round(height * factor))


def _shown(images: ImageSet, place: int, size: tuple[int, int]) -> Image.Image:
    """Turn one image into a picture of ``size`` (width, height), pixels kept sharp, with the outlines of its mask."""
    picture = Image.fromarray(images.x[place])
    enlarged = size[0] >= picture.width
    picture = picture.resize(size, Image.Resampling.NEAREST if enlarged else Image.Resampling.BOX)
    if images.masks is None:
        return picture
    pixels = np.array(picture)
    mask = np.asarray(Image.fromarray(images.masks[place]).resize(size, Image.Resampling.NEAREST))
    pixels[:, 1:][mask[:, 1:] != mask[:, :-1]] = OUTLINE
    pixels[1:][mask[1:] != mask[:-1]] = OUTLINE
    return Image.fromarray(pixels)


def contact_sheet(sets: dict[str, ImageSet], classes: tuple[str, ...], *, per_class: int = 2) -> Image.Image:
    """Draw the first images of every class, one block of rows per domain.

    Args:
        sets: Images of each domain by its name, at least one, in the order in which they are shown.
        classes: Class names, one column each.
        per_class: Images of each class and domain; where there are fewer, the paper stays empty.

    Returns:
        An RGB picture; the same arguments give the same pixels.
    """
    sizes = {name: _shown_size(images) for name, images in sets.items()}
    width = max(LINE, *(size[0] for size in sizes.values())) + PAD
    height = max(size[1] for size in sizes.values()) + PAD
    headers, names = [_label(name).transpose(Image.Transpose.ROTATE_90) for name in classes], list(map(_label, sets))
    left, top = 2 * PAD + max(name.width for name in names), 2 * PAD + max(header.height for header in headers)
    block = per_class * height + PAD
    sheet = Image.new("RGB", (left + len(classes) * width, top + len(sets) * block), PAPER)
    for label, header in enumerate(headers):
        sheet.paste(header, (left + label * width, top - PAD - header.height))
    for begin, name, (domain, images) in zip(count(top, block), names, sets.items(), strict=False):
        sheet.paste(name, (PAD, begin))
        for label in range(len(classes)):
            for row, place in enumerate(np.flatnonzero(images.y == label)[:per_class].tolist()):
                corner = (left + label * width, begin + row * height)
                sheet.paste(_shown(images, place, sizes[domain]), corner)
    return sheet


def corruption_sheet(images: ImageSet, severities: Sequence[int]) -> Image.Image:
    """Draw a few images as they are and corrupted, evenly spaced in their order, as that may go class by class.

    Args:
        images: The images to corrupt, at least one; an image's index is its key.
        severities: One column each, for every image.

    Returns:
        An RGB picture; the same arguments give the same pixels.

    Raises:
        DataError: If the images are of a size that cannot be corrupted.
    """
    shown = min(SHOWN, len(images))
    keys = np.arange(shown) * len(images) // shown
    x = images.x[keys]
    rows = {}
    for name in CORRUPTIONS:
        levels = [corrupt(x, name, severity, keys) for severity in (0, *severities)]
        # Images x levels, in the order of the columns.
        cells = np.stack(levels, axis=1).reshape(-1, *x.shape[1:])
        rows[name] = ImageSet(cells, np.arange(len(cells)))
    return contact_sheet(rows, ("original", *map(str, severities)) * shown, per_class=1)
