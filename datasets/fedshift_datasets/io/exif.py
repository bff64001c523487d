"""Reads the EXIF orientation of an image, which a camera writes instead of turning the pixels."""

import struct
from collections.abc import Callable

from PIL import Image

from fedshift_datasets.io import tiff

_TAG = 274
UPRIGHT = 1
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
#: Every file with an orientation contains one of these: in EXIF, or in XMP, which Pillow reads too.
_MARKS = (b"exif", b"orientation", b"xmp")


def orientation(content: bytes, image: Image.Image) -> int:
    """Return the orientation that a file states, 1 to 8; 1 (upright) without a known one.

    Args:
        content: The file.
        image: The same file, opened by Pillow; not used for a TIFF, which is opened without the tag.
    """
    return _stated(lambda: _of_tiff(content) if content.startswith(tiff.MAGIC) else _of_others(content, image))


def of_opened(image: Image.Image) -> int:
    """Return the orientation that an image opened by Pillow states, as :func:`orientation` does."""
    return _stated(lambda: image.getexif().get(_TAG))


def _stated(read: Callable[[], object]) -> int:
    try:
        value = read()
    except Exception:  # Pillow raises nearly any type on a damaged EXIF block, and the pixels may be fine
        return UPRIGHT
    return value if isinstance(value, int) and value in _TURNS else UPRIGHT


def turned(image: Image.Image, stated: int) -> Image.Image:
    """Return an image turned or mirrored as a stated orientation says."""
    return image.transpose(_TURNS[stated]) if stated in _TURNS else image


def _of_others(content: bytes, image: Image.Image) -> object:
    # Pillow decodes all pixels of a PNG to look behind them.
    folded = content.lower()
    return image.getexif().get(_TAG) if any(mark in folded for mark in _MARKS) else UPRIGHT


def _of_tiff(content: bytes) -> object:
    order = "<" if content[:2] == b"II" else ">"
    (at,) = struct.unpack_from(f"{order}I", content, 4)
    (number,) = struct.unpack_from(f"{order}H", content, at)
    for place in range(at + 2, at + 2 + 12 * number, 12):
        tag, kind, count = struct.unpack_from(f"{order}HHI", content, place)
        if (tag, kind, count) == (_TAG, 3, 1):
            return struct.unpack_from(f"{order}H", content, place + 8)[0]
    return UPRIGHT
