"""Draws a contact sheet: a few images of every class and domain side by side."""

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fedshift_datasets.base import ImageSet

FONT_SIZE = 13
#: Height of one line of text in pixels, and the smallest width of a column with a turned header.
LINE = 18
PAD = 4
#: Longest text of a header or a row in pixels; longer text is cut.
TEXT_LIMIT = 110
#: Images up to this side are enlarged; larger ones are reduced to LARGEST_CELL if necessary.
SMALL_SIDE = 64
LARGEST_CELL = 128
ELLIPSIS = "…"
PAPER = (255, 255, 255)
BLANK = (222, 222, 234)
TEXT = (20, 20, 20)
OUTLINE = (255, 0, 255)

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def _font() -> Font:
    return ImageFont.load_default(FONT_SIZE)


def _width(text: str) -> int:
    """Return the width of ``text`` in pixels, rounded up."""
    return int(np.ceil(_font().getlength(text)))


def _fitted(text: str, limit: int) -> str:
    """Cut ``text`` so that it is at most ``limit`` pixels wide."""
    if _width(text) <= limit:
        return text
    kept = text
    while kept and _width(kept + ELLIPSIS) > limit:
        kept = kept[:-1]
    return kept + ELLIPSIS


def _label(text: str, limit: int) -> Image.Image:
    """Draw one line of text, cut to ``limit`` pixels, on a strip that is as wide as the text."""
    shown = _fitted(text, limit)
    strip = Image.new("RGB", (max(1, _width(shown)), LINE), PAPER)
    ImageDraw.Draw(strip).text((0, LINE // 2), shown, fill=TEXT, font=_font(), anchor="lm")
    return strip


def _shown_size(images: ImageSet, scale: int) -> tuple[int, int]:
    """Return (width, height) in which images of this set are shown."""
    height, width = images.x.shape[1:3]
    side = max(height, width)
    if side <= SMALL_SIDE:
        return width * scale, height * scale
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


def _headers(classes: tuple[str, ...], column: int) -> list[Image.Image]:
    """Draw the class names: level if all fit in ``column`` pixels, otherwise all turned upwards."""
    if all(_width(name) <= column for name in classes):
        return [_label(name, column) for name in classes]
    return [_label(name, TEXT_LIMIT).transpose(Image.Transpose.ROTATE_90) for name in classes]


def _block(images: ImageSet, classes: int, per_class: int, cell: tuple[int, int], scale: int) -> Image.Image:
    """Draw one domain: a column for each class, ``per_class`` cells high; what is missing stays blank."""
    width, height = cell
    block = Image.new("RGB", (classes * (width + PAD), per_class * (height + PAD)), PAPER)
    size = _shown_size(images, scale)
    for label in range(classes):
        places = np.flatnonzero(images.y == label)[:per_class]
        for place in range(per_class):
            corner = (label * (width + PAD), place * (height + PAD))
            if place < len(places):
                block.paste(_shown(images, int(places[place]), size), corner)
            else:
                block.paste(BLANK, (*corner, corner[0] + width, corner[1] + height))
    return block


def contact_sheet(
    sets: dict[str, ImageSet], classes: tuple[str, ...], *, per_class: int = 2, scale: int = 2
) -> Image.Image:
    """Draw the first images of every class, one block of rows per domain.

    Args:
        sets: Images of each domain by its name, in the order in which they are shown.
        classes: Class names, one column each; names too long for a column are turned and cut.
        per_class: Images of each class and domain; cells without an image are plain.
        scale: How many times images of up to 64 pixels are enlarged. Larger ones are shown in at
            most 128 pixels.

    Returns:
        An RGB picture; the same arguments give the same pixels.

    Raises:
        ValueError: If there are no domains or classes, or a number is below 1.
    """
    if not sets or not classes or per_class < 1 or scale < 1:
        raise ValueError("a contact sheet needs a domain, a class, and per_class and scale of at least 1")
    sizes = [_shown_size(images, scale) for images in sets.values()]
    cell = (max(LINE, *(width for width, _ in sizes)), max(height for _, height in sizes))
    headers = _headers(classes, cell[0])
    names = [_label(name, TEXT_LIMIT) for name in sets]
    blocks = [_block(images, len(classes), per_class, cell, scale) for images in sets.values()]
    return _assembled(names, headers, blocks, cell[0] + PAD)


def _assembled(
    names: list[Image.Image], headers: list[Image.Image], blocks: list[Image.Image], pitch: int
) -> Image.Image:
    """Put domain names, class headers and blocks together; columns are ``pitch`` pixels apart."""
    left = PAD + max(name.width for name in names) + PAD
    top = PAD + max(header.height for header in headers) + PAD
    height = top + sum(block.height + PAD for block in blocks)
    sheet = Image.new("RGB", (left + blocks[0].width, height), PAPER)
    for number, header in enumerate(headers):
        middle = left + number * pitch + (pitch - PAD - header.width) // 2
        sheet.paste(header, (middle, top - PAD - header.height))
    for name, block in zip(names, blocks, strict=True):
        sheet.paste(block, (left, top))
        sheet.paste(name, (PAD, top + (block.height - PAD - name.height) // 2))
        top += block.height + PAD
    return sheet
